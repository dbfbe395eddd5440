//! The shape of a request: enough of Kafka's schema to walk over the bytes before anything is decoded.
//!
//! The generated decoders reserve room for as many elements as an array claims to have, so twenty bytes could ask for
//! hundreds of gigabytes and end the process. Kafka's own generated code compares the claim with the bytes that are
//! left; this walk does the same, and bounds what a well-formed request may blow up to: elements and tagged fields
//! cost several times their bytes once they are structs.
//!
//! The walk judges lengths only. Nulls, UTF-8 and meaning are left to the decoder and the handlers.

use crate::config::limits::{REQUEST_ELEMENTS_MAX, REQUEST_TAGGED_FIELDS_MAX};

/// Kafka's strings have an int16 length, and in compact form the same limit.
const STRING_BYTES_MAX: u64 = i16::MAX as u64;

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// int8 and bool.
    I8,
    /// int16.
    I16,
    /// int32.
    I32,
    /// int64.
    I64,
    /// uuid.
    Uuid,
    /// string, nullable or not.
    Str,
    /// bytes or records, nullable or not.
    Bytes,
    /// An array of structs, nullable or not.
    Structs(&'static [Field]),
    /// An array of a plain type, nullable or not.
    Plain(&'static Kind),
}

/// A field and the versions that have it.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its type.
    pub kind: Kind,
    /// First version.
    pub since: i16,
    /// Last version.
    pub until: i16,
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// First version with compact lengths and tagged fields (KIP-482).
    pub flexible_since: i16,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// A field of all versions.
pub const fn all(kind: Kind) -> Field {
    Field { kind, since: 0, until: i16::MAX }
}

/// A field from a version on.
pub const fn since(version: i16, kind: Kind) -> Field {
    Field { kind, since: version, until: i16::MAX }
}

/// A field up to a version, inclusive.
pub const fn until(version: i16, kind: Kind) -> Field {
    Field { kind, since: 0, until: version }
}

/// A field of a range of versions, inclusive.
pub const fn between(since: i16, until: i16, kind: Kind) -> Field {
    Field { kind, since, until }
}

/// Why the bytes are not such a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misshapen {
    /// A length points behind the end.
    #[error("cut short")]
    Short,
    /// A length below −1.
    #[error("negative length {0}")]
    Negative(i64),
    /// A string longer than Kafka's strings may be.
    #[error("a string of {0} bytes")]
    String(u64),
    /// An array claims more elements than bytes are left.
    #[error("an array of {0} elements in {1} bytes")]
    Array(u64, usize),
    /// A varint of more than five bytes.
    #[error("a variable-length number is too long")]
    Varint,
    /// Over [`REQUEST_ELEMENTS_MAX`] or [`REQUEST_TAGGED_FIELDS_MAX`].
    #[error("more elements or tagged fields than a request may have")]
    Elements,
}

/// Walks over the request header in front of a body: what is behind it.
///
/// A header has key, version and correlation id, the client id, and from header version 2 on tagged fields.
///
/// # Errors
/// The first fault.
pub fn check_header(header_version: i16, frame: &[u8]) -> Result<&[u8], Misshapen> {
    let mut walk = Walk {
        left: frame,
        version: header_version,
        flexible: header_version >= 2,
        elements: REQUEST_ELEMENTS_MAX,
        tagged: REQUEST_TAGGED_FIELDS_MAX,
    };
    walk.skip(8)?;
    // The client id is never compact (KIP-511).
    let client_id = walk.i16()?.unwrap_or(0);
    walk.skip(client_id as usize)?;
    if walk.flexible {
        walk.tagged_fields()?;
    }
    Ok(walk.left)
}

impl Shape {
    /// Walks over a whole request body. What is left behind it is ignored, as Kafka does: librdkafka 2.16 sends three stray
    /// bytes with a Metadata request for all topics.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self, version: i16, body: &[u8]) -> Result<(), Misshapen> {
        let mut walk = Walk {
            left: body,
            version,
            flexible: version >= self.flexible_since,
            elements: REQUEST_ELEMENTS_MAX,
            tagged: REQUEST_TAGGED_FIELDS_MAX,
        };
        walk.structure(self.fields)
    }
}

struct Walk<'a> {
    left: &'a [u8],
    version: i16,
    flexible: bool,
    elements: usize,
    tagged: usize,
}

impl Walk<'_> {
    fn structure(&mut self, fields: &'static [Field]) -> Result<(), Misshapen> {
        for field in fields {
            if (field.since..=field.until).contains(&self.version) {
                self.field(field.kind)?;
            }
        }
        if self.flexible {
            self.tagged_fields()?;
        }
        Ok(())
    }

    fn field(&mut self, kind: Kind) -> Result<(), Misshapen> {
        match kind {
            Kind::I8 => self.skip(1),
            Kind::I16 => self.skip(2),
            Kind::I32 => self.skip(4),
            Kind::I64 => self.skip(8),
            Kind::Uuid => self.skip(16),
            Kind::Str => {
                let length = if self.flexible { self.compact()? } else { self.i16()? }.unwrap_or(0);
                if length > STRING_BYTES_MAX {
                    return Err(Misshapen::String(length));
                }
                self.skip(length as usize)
            }
            Kind::Bytes => {
                let length = if self.flexible { self.compact()? } else { self.i32()? };
                self.skip(length.unwrap_or(0) as usize)
            }
            Kind::Structs(fields) => {
                for _ in 0..self.count()? {
                    self.structure(fields)?;
                }
                Ok(())
            }
            Kind::Plain(kind) => {
                for _ in 0..self.count()? {
                    self.field(*kind)?;
                }
                Ok(())
            }
        }
    }

    /// Elements of an array that starts here. Every element has at least one byte.
    fn count(&mut self) -> Result<usize, Misshapen> {
        let claimed = if self.flexible { self.compact()? } else { self.i32()? }.unwrap_or(0);
        if claimed > self.left.len() as u64 {
            return Err(Misshapen::Array(claimed, self.left.len()));
        }
        let count = claimed as usize;
        self.elements = self.elements.checked_sub(count).ok_or(Misshapen::Elements)?;
        Ok(count)
    }

    fn tagged_fields(&mut self) -> Result<(), Misshapen> {
        let count = self.varint()? as usize;
        self.tagged = self.tagged.checked_sub(count).ok_or(Misshapen::Elements)?;
        for _ in 0..count {
            self.varint()?;
            let length = self.varint()?;
            self.skip(length as usize)?;
        }
        Ok(())
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Misshapen> {
        self.left = self.left.get(bytes..).ok_or(Misshapen::Short)?;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Misshapen> {
        let (head, left) = self.left.split_first_chunk::<N>().ok_or(Misshapen::Short)?;
        self.left = left;
        Ok(*head)
    }

    fn i16(&mut self) -> Result<Option<u64>, Misshapen> {
        let length = i64::from(i16::from_be_bytes(self.take()?));
        nullable(length)
    }

    fn i32(&mut self) -> Result<Option<u64>, Misshapen> {
        let length = i64::from(i32::from_be_bytes(self.take()?));
        nullable(length)
    }

    /// A compact length is one more than the length; 0 is null.
    fn compact(&mut self) -> Result<Option<u64>, Misshapen> {
        Ok(u64::from(self.varint()?).checked_sub(1))
    }

    fn varint(&mut self) -> Result<u32, Misshapen> {
        let mut value = 0u32;
        for at in 0..5 {
            let [byte] = self.take()?;
            value |= u32::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Misshapen::Varint)
    }
}

fn nullable(length: i64) -> Result<Option<u64>, Misshapen> {
    match length {
        -1 => Ok(None),
        _ => u64::try_from(length).map(Some).map_err(|_| Misshapen::Negative(length)),
    }
}

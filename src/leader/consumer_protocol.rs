//! The assignment that a consumer group's leader hands to a member (Kafka's `ConsumerProtocolAssignment.json`, v0–v3).
//!
//! ```text
//! version i16 | topics: i32 count × { name: i16 length, UTF-8 | partitions: i32 count × i32 } | user data: i32 length (−1 = null), bytes
//! ```
//!
//! The versions are alike, and a later one may append fields; so bytes behind the user data are allowed. Everything
//! else that does not fit means: not in this form (Connect, for example).

use std::collections::BTreeSet;

/// Protocol type of groups whose assignments have this form.
pub const PROTOCOL_TYPE: &str = "consumer";

/// Removes from `wanted` the partitions that the assignment contains; None if the bytes are not such an assignment.
///
/// One walk for all of them, since an assignment may be large. Nothing is allocated: lengths are believed only as far as
/// bytes are there.
pub fn assigned<'a>(assignment: &'a [u8], wanted: &mut BTreeSet<(&'a str, i32)>) -> Option<()> {
    let mut rest = Reader(assignment);
    let version = rest.i16()?;
    if version < 0 {
        return None;
    }
    for _ in 0..rest.count()? {
        let length = usize::try_from(rest.i16()?).ok()?;
        let name = std::str::from_utf8(rest.take(length)?).ok()?;
        for _ in 0..rest.count()? {
            let partition = rest.i32()?;
            wanted.remove(&(name, partition));
        }
    }
    match rest.i32()? {
        -1 => {}
        length => {
            rest.take(usize::try_from(length).ok()?)?;
        }
    }
    Some(())
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    fn i16(&mut self) -> Option<i16> {
        let raw = self.take(2)?;
        Some(i16::from_be_bytes([raw[0], raw[1]]))
    }

    fn i32(&mut self) -> Option<i32> {
        let raw = self.take(4)?;
        Some(i32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]))
    }

    /// A count of elements, each of at least two bytes: a count beyond the bytes left is refused before looping.
    fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.i32()?).ok()?;
        (count <= self.0.len() / 2).then_some(count)
    }
}

#[cfg(test)]
pub(crate) mod sample {
    /// An assignment in this form, as a consumer's leader encodes it.
    pub fn assignment(version: i16, topics: &[(&str, &[i32])]) -> Vec<u8> {
        let mut out = version.to_be_bytes().to_vec();
        out.extend((topics.len() as i32).to_be_bytes());
        for (name, partitions) in topics {
            out.extend((name.len() as i16).to_be_bytes());
            out.extend(name.as_bytes());
            out.extend((partitions.len() as i32).to_be_bytes());
            partitions.iter().for_each(|partition| out.extend(partition.to_be_bytes()));
        }
        out.extend((-1_i32).to_be_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assigns<'a>(assignment: &'a [u8], topic: &'a str, partition: i32) -> Option<bool> {
        let mut wanted = BTreeSet::from([(topic, partition), ("elsewhere", 0)]);
        assigned(assignment, &mut wanted)?;
        assert!(wanted.contains(&("elsewhere", 0)));
        Some(wanted.len() == 1)
    }

    #[test]
    fn a_partition_is_found_under_its_own_topic_only() {
        for version in 0..=3 {
            let bytes = sample::assignment(version, &[("orders", &[0, 2]), ("payments", &[1])]);
            assert_eq!(assigns(&bytes, "orders", 2), Some(true));
            assert_eq!(assigns(&bytes, "orders", 1), Some(false));
            assert_eq!(assigns(&bytes, "payments", 1), Some(true));
            assert_eq!(assigns(&bytes, "pay", 1), Some(false));
        }
    }

    #[test]
    fn every_cut_and_every_false_count_is_told_from_an_assignment() {
        let bytes = sample::assignment(1, &[("orders", &[0, 2])]);
        for cut in 0..bytes.len() {
            assert_eq!(assigns(&bytes[..cut], "orders", 0), None, "cut at {cut}");
        }
        let mut huge = bytes.clone();
        huge[2..6].copy_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(assigns(&huge, "orders", 0), None);
        let mut negative = bytes;
        negative[..2].copy_from_slice(&(-1_i16).to_be_bytes());
        assert_eq!(assigns(&negative, "orders", 0), None);
    }

    #[test]
    fn user_data_and_later_fields_are_passed_over() {
        let mut bytes = sample::assignment(0, &[("t", &[7])]);
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&3_i32.to_be_bytes());
        assert_eq!(assigns(&bytes, "t", 7), None, "three bytes are announced and missing");
        bytes.extend(b"abcdef");
        assert_eq!(assigns(&bytes, "t", 7), Some(true));
    }
}

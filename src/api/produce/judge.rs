//! Judges the records of one partition by themselves, before the leader is asked.

use bytes::{Buf, Bytes};
use kafka_protocol::error::ResponseError as E;

use crate::config::limits::{ENTRY_BYTES_MAX, TIMESTAMP_AFTER_MS_MAX};
use crate::types::record_batch::{BatchFault, HEADER_BYTES};
use crate::types::settings::TopicSettings;
use crate::types::{ProducerIdAndEpoch, RecordBatch};

/// Why a partition's records are refused before the leader is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    pub error: E,
    pub message: Option<String>,
    /// The record at fault, where the header tells.
    pub record: Option<i32>,
}

impl Rejected {
    pub fn new(error: E, message: impl Into<String>) -> Self {
        Self { error, message: Some(message.into()), record: None }
    }

    pub fn plain(error: E) -> Self {
        Self { error, message: None, record: None }
    }
}

/// What all partitions of a request are judged by.
pub(super) struct Asked<'a> {
    pub version: i16,
    pub transactional_id: Option<&'a str>,
    pub now_ms: i64,
}

impl Asked<'_> {
    /// One partition's records.
    ///
    /// # Errors
    /// Why they are refused.
    pub fn judge(&self, settings: &TopicSettings, records: Option<Bytes>) -> Result<RecordBatch, Rejected> {
        let bytes = records.unwrap_or_default();
        self.judge_framing(&bytes)?;
        if bytes.len() > (settings.max_message_bytes as usize).min(ENTRY_BYTES_MAX) {
            let message = format!(
                "the batch of {} bytes is larger than max.message.bytes or than an entry of the log",
                bytes.len()
            );
            return Err(Rejected::new(E::MessageTooLarge, message));
        }
        let batch = RecordBatch::check(bytes).map_err(|fault| match fault {
            BatchFault::Crc => Rejected::new(E::CorruptMessage, fault.to_string()),
            BatchFault::Truncated | BatchFault::Trailing | BatchFault::Magic(_) | BatchFault::Inconsistent => {
                Rejected::new(E::InvalidRecord, fault.to_string())
            }
        })?;
        self.judge_header(settings, batch)
    }

    /// The pair in the header of a framed transactional batch, whatever else is wrong with it.
    pub fn pair_of(&self, records: &Bytes) -> Option<ProducerIdAndEpoch> {
        self.transactional_id?;
        self.judge_framing(records).ok()?;
        let header = RecordBatch::stored(records.clone());
        header.producer().filter(|_| header.is_transactional())
    }

    /// What `ProduceRequest.validateRecords` finds while it looks for exactly one batch.
    fn judge_framing(&self, bytes: &Bytes) -> Result<(), Rejected> {
        const ZSTD: i16 = 4;
        let mut head = &bytes[..];
        if head.len() < HEADER_BYTES {
            return Err(Rejected::new(E::InvalidRecord, "a produce request has exactly one whole record batch"));
        }
        let (base_offset, length) = (head.get_i64(), head.get_i32());
        let magic = bytes[16] as i8;
        // Kafka's `LegacyRecord.RECORD_OVERHEAD_V0`, and a magic nobody knows: not even framing.
        if length < 14 || !(0..=2).contains(&magic) {
            return Err(Rejected::new(E::CorruptMessage, "the batch's length or magic is impossible"));
        }
        if magic < 2 {
            return Err(Rejected::new(E::InvalidRecord, "only record batches of magic version 2 are allowed"));
        }
        let codec = i16::from_be_bytes([bytes[21], bytes[22]]) & 7;
        if codec == ZSTD && self.version < 7 {
            return Err(Rejected::new(E::UnsupportedCompressionType, "zstd needs Produce version 7"));
        }
        if base_offset != 0 {
            return Err(Rejected::new(E::InvalidRecord, format!("the base offset is {base_offset} and not 0")));
        }
        Ok(())
    }

    /// What `UnifiedLog` and `LogValidator` ask of a batch that a client sent.
    fn judge_header(&self, settings: &TopicSettings, batch: RecordBatch) -> Result<RecordBatch, Rejected> {
        let invalid = |message: &str| Err(Rejected::new(E::InvalidRecord, message));
        if batch.is_control() {
            return invalid("clients may not write control records");
        }
        if batch.producer_id() >= 0 && batch.base_sequence() < 0 {
            return invalid("a batch with a producer id needs a sequence");
        }
        if batch.is_transactional() && batch.producer_id() < 0 {
            return invalid("a transactional batch needs a producer id");
        }
        if self.transactional_id.is_some() && !batch.is_transactional() {
            return invalid("a transactional request has transactional batches only");
        }
        let too_late = self.now_ms.saturating_add(TIMESTAMP_AFTER_MS_MAX);
        let stamped = if batch.is_log_append_time() {
            Some("producers may not set LogAppendTime")
        } else if !settings.log_append_time && batch.max_timestamp() > too_late {
            Some("the timestamp is too far ahead of the broker's clock")
        } else {
            None
        };
        match stamped {
            Some(message) => {
                let record = (batch.record_count() == 1).then_some(0);
                Err(Rejected { error: E::InvalidTimestamp, message: Some(message.into()), record })
            }
            None => Ok(batch),
        }
    }
}

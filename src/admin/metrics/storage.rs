//! Disk space and bytes per topic.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use metrics::{Unit, describe_gauge, gauge};

use crate::read::Reader;
use crate::state::Machine;

/// Free bytes below which the alert gauge says degraded (2), and low (1).
const DEGRADED_BYTES: f64 = 1_073_741_824.0;
const LOW_BYTES: f64 = 5.0 * DEGRADED_BYTES;

pub(super) fn describe() {
    describe_gauge!("redpanda_storage_disk_total_bytes", Unit::Bytes, "Size of the data directory's file system");
    describe_gauge!("redpanda_storage_disk_free_bytes", Unit::Bytes, "Free on the data directory's file system");
    describe_gauge!("redpanda_storage_disk_free_space_alert", "0 enough, 1 low, 2 degraded");
    describe_gauge!("katomic_log_size_bytes", Unit::Bytes, "Segment bytes of a topic");
}

pub(super) fn record(data_dir: &Path) {
    let Ok(path) = CString::new(data_dir.as_os_str().as_bytes()) else { return };
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string and `found` has room for the structure; it is read only after success.
    let found = unsafe {
        if libc::statvfs(path.as_ptr(), found.as_mut_ptr()) != 0 {
            return;
        }
        found.assume_init()
    };
    let block = found.f_frsize as f64;
    let free = found.f_bavail as f64 * block;
    gauge!("redpanda_storage_disk_total_bytes").set(found.f_blocks as f64 * block);
    gauge!("redpanda_storage_disk_free_bytes").set(free);
    let alert = if free < DEGRADED_BYTES {
        2.0
    } else if free < LOW_BYTES {
        1.0
    } else {
        0.0
    };
    gauge!("redpanda_storage_disk_free_space_alert").set(alert);
}

pub(super) fn record_sizes(reader: &Reader, machine: &Machine) {
    let mut by_topic: BTreeMap<crate::types::TopicId, u64> = BTreeMap::new();
    for (of, bytes) in reader.segments().sizes() {
        *by_topic.entry(of.topic).or_default() += bytes;
    }
    for (id, bytes) in by_topic {
        if let Some(topic) = machine.topics().get(id) {
            gauge!("katomic_log_size_bytes", "topic" => topic.name.clone()).set(bytes as f64);
        }
    }
}

//! The process itself: CPU, memory, file descriptors, from `/proc/self` (Linux; elsewhere the family is absent).

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

pub(super) fn describe() {
    describe_counter!("process_cpu_seconds_total", Unit::Seconds, "CPU time, user and system");
    describe_gauge!("process_resident_memory_bytes", Unit::Bytes, "Resident memory");
    describe_gauge!("process_virtual_memory_bytes", Unit::Bytes, "Address space in use");
    describe_gauge!("process_start_time_seconds", Unit::Seconds, "When this process started, since the Unix epoch");
    describe_gauge!("process_max_fds", "File descriptors that may be open");
    describe_gauge!("process_open_fds", "Open file descriptors");
    describe_counter!("redpanda_cpu_busy_seconds_total", Unit::Seconds, "CPU time, user and system");
    describe_gauge!("redpanda_memory_allocated_memory", Unit::Bytes, "Resident memory");
    describe_gauge!("redpanda_memory_available_memory", Unit::Bytes, "Memory that the system can still give");
    describe_gauge!("redpanda_memory_free_memory", Unit::Bytes, "Memory that nothing uses");
}

pub(super) fn record() {
    let page_bytes = system(libc::_SC_PAGESIZE);
    let ticks_per_second = system(libc::_SC_CLK_TCK);
    if let Some(Stat { cpu_ticks, start_ticks, virtual_bytes, pages }) = read_stat() {
        let seconds = cpu_ticks / ticks_per_second;
        gauge!("process_virtual_memory_bytes").set(virtual_bytes);
        if let Some(boot) = boot_time() {
            gauge!("process_start_time_seconds").set(boot + start_ticks / ticks_per_second);
        }
        // Counters of this crate are whole numbers.
        counter!("process_cpu_seconds_total").absolute(seconds as u64);
        counter!("redpanda_cpu_busy_seconds_total", "shard" => "0").absolute(seconds as u64);
        gauge!("process_resident_memory_bytes").set(pages * page_bytes);
        gauge!("redpanda_memory_allocated_memory").set(pages * page_bytes);
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        gauge!("process_open_fds").set(entries.count() as f64);
    }
    if let Some(max) = fds_max() {
        gauge!("process_max_fds").set(max);
    }
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    for (name, metric) in
        [("MemAvailable:", "redpanda_memory_available_memory"), ("MemFree:", "redpanda_memory_free_memory")]
    {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        if let Some(kib) = kib {
            gauge!(metric).set(kib * 1024.0);
        }
    }
}

fn system(name: libc::c_int) -> f64 {
    // SAFETY: sysconf takes a plain number and has no preconditions.
    let value = unsafe { libc::sysconf(name) };
    value.max(1) as f64
}

/// What `/proc/self/stat` says.
struct Stat {
    cpu_ticks: f64,
    /// Since the system's boot.
    start_ticks: f64,
    virtual_bytes: f64,
    pages: f64,
}

/// Fields 14, 15 and 22 to 24 of `/proc/self/stat`, counted behind the command's bracket.
fn read_stat() -> Option<Stat> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some(Stat {
        cpu_ticks: field(14)? + field(15)?,
        start_ticks: field(22)?,
        virtual_bytes: field(23)?,
        pages: field(24)?,
    })
}

/// When the system booted, seconds since the Unix epoch.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// The soft limit of open files; None if there is none.
fn fds_max() -> Option<f64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn this_process_started_lately_and_has_memory_and_descriptors() {
        let stat = read_stat().expect("Linux has /proc/self/stat");
        assert!(stat.pages > 0.0 && stat.virtual_bytes > stat.pages * system(libc::_SC_PAGESIZE));
        let started = boot_time().expect("Linux has /proc/stat") + stat.start_ticks / system(libc::_SC_CLK_TCK);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((now - 3_600.0..now + 2.0).contains(&started), "{started}, now {now}");
        assert!(fds_max().is_none_or(|max| max >= 16.0));
    }
}

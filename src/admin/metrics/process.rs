//! The process itself: CPU, memory, file descriptors, from `/proc/self` (Linux; elsewhere the family is absent).

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

pub(super) fn describe() {
    describe_counter!("process_cpu_seconds_total", Unit::Seconds, "CPU time, user and system");
    describe_gauge!("process_resident_memory_bytes", Unit::Bytes, "Resident memory");
    describe_gauge!("process_open_fds", "Open file descriptors");
    describe_counter!("redpanda_cpu_busy_seconds_total", Unit::Seconds, "CPU time, user and system");
    describe_gauge!("redpanda_memory_allocated_memory", Unit::Bytes, "Resident memory");
    describe_gauge!("redpanda_memory_available_memory", Unit::Bytes, "Memory that the system can still give");
    describe_gauge!("redpanda_memory_free_memory", Unit::Bytes, "Memory that nothing uses");
}

pub(super) fn record() {
    let page_bytes = system(libc::_SC_PAGESIZE);
    let ticks_per_second = system(libc::_SC_CLK_TCK);
    if let Some((ticks, pages)) = read_stat() {
        let seconds = ticks / ticks_per_second;
        // Counters of this crate are whole numbers.
        counter!("process_cpu_seconds_total").absolute(seconds as u64);
        counter!("redpanda_cpu_busy_seconds_total", "shard" => "0").absolute(seconds as u64);
        gauge!("process_resident_memory_bytes").set(pages * page_bytes);
        gauge!("redpanda_memory_allocated_memory").set(pages * page_bytes);
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        gauge!("process_open_fds").set(entries.count() as f64);
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

/// (CPU ticks, resident pages): fields 14, 15 and 24 of `/proc/self/stat`, counted behind the command's bracket.
fn read_stat() -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some((field(14)? + field(15)?, field(24)?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_memory() {
        let (_, pages) = super::read_stat().expect("Linux has /proc/self/stat");
        assert!(pages > 0.0);
    }
}

//! Both clocks of a node. The one for timers counts suspension (CLOCK_BOOTTIME), as leases must: a machine that slept
//! has lost its leadership although its CPU time says otherwise.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::types::Now;

/// Reads both clocks.
pub fn now() -> Now {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    Now { wall_ms: i64::try_from(wall).unwrap_or(i64::MAX), mono_ms: mono_ms() }
}

/// Milliseconds since boot, suspension included.
fn mono_ms() -> u64 {
    boot_us() / 1000
}

/// Microseconds since boot, suspension included.
pub fn boot_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec that lives through the call; CLOCK_BOOTTIME exists since Linux 2.6.39.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    assert_eq!(result, 0, "CLOCK_BOOTTIME can always be read");
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    seconds * 1_000_000 + micros
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_timer_clock_never_goes_back() {
        let mut last = super::now();
        for _ in 0..1000 {
            let now = super::now();
            assert!(now.mono_ms >= last.mono_ms && now.wall_ms > 1_600_000_000_000);
            last = now;
        }
    }
}

//! The `katomic` binary: parses the command line and hands over to the library.

/// glibc's allocator keeps what a burst of large requests took; this one gives it back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    katomic::cli::run()
}

//! Golden scripts, and what must hold for every sequence of entries.

mod properties;
mod script;

#[test]
fn golden_scripts() {
    crate::types::golden::run("src/state/scripts", || {
        let mut script = script::Script::new();
        Box::new(move |line| script.run(line))
    });
}

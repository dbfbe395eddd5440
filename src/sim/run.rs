//! One run: a world with clients, so many seconds of faults, then peace, then the last judgement.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use super::clients::admin::Admin;
use super::clients::core::{AfterAbort, Protocol, Style};
use super::clients::pipeline::{Pipeline, Worker};
use super::clients::plain::Plain;
use super::clients::producer::Producer;
use super::faults::Fault;
use super::invariants::everything_ends;
use super::mutants::Mutant;
use super::oracle::Counts;
use super::world::{Event, Setup, World, settings};

/// How long things go wrong.
const TROUBLE_MS: u64 = 9_000;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What a run was like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Over every event, in order.
    pub checksum: u64,
    pub events: u64,
    pub counts: Counts,
}

fn setup(seed: u64, mutant: Mutant) -> Setup {
    Setup { seed, mutant, rough: true, settings: settings() }
}

fn style(world: &mut World, protocol: Protocol) -> Style {
    let after_abort = [AfterAbort::Bumps, AfterAbort::Rewinds, AfterAbort::GoesOn][world.rng.index(3)];
    Style {
        protocol,
        after_abort,
        pipelined: 1 + world.rng.index(3),
        timeout_ms: if world.rng.chance(300) { 1_500 } else { 60_000 },
        offsets_with_records: world.rng.chance(500),
        idles_per_mille: 60,
    }
}

fn populate(world: &mut World) {
    world.add(Box::new(Admin::default()));
    let ready = world.run_until(30_000, |world| world.topics.contains_key("in") && world.topics.contains_key("out"));
    assert!(ready, "something hangs: no topics");
    for (name, protocol) in
        [("t1", Protocol::Tv1), ("t2", Protocol::Tv2), ("t3", Protocol::Turns), ("t4", Protocol::Tv1)]
    {
        let style = style(world, protocol);
        world.add(Box::new(Producer::new(name.into(), style)));
    }
    world.add(Box::new(Plain::new()));
    world.add(Box::new(Plain::new()));
    for (name, protocol) in [("p1", Protocol::Tv1), ("p2", Protocol::Tv2), ("p3", Protocol::Tv2)] {
        let style = style(world, protocol);
        let hasty = world.rng.chance(500);
        world.add(Box::new(Pipeline::new("eos", name.into(), style, hasty)));
    }
    for name in ["w1", "w2"] {
        world.add(Box::new(Worker::new("alo", Arc::from(name))));
    }
    for client in 0..world.clients.len() {
        world.clients[client].session.shared = world.rng.chance(400);
        world.clients[client].session.timeout_ms = world.rng.between(300, 1_200);
    }
}

fn drive(world: &mut World) {
    populate(world);
    world.after(0, Event::Fault(Fault::Next));
    world.run_ms(TROUBLE_MS);
    world.after(0, Event::Fault(Fault::Peace));
    // What was late may still arrive, and clients go on for a while without trouble.
    world.run_ms(2_000);
    everything_ends::finish(world);
}

/// Runs a seed; the error tells what broke, and what led to it if `in_words`.
pub fn run(seed: u64, mutant: Mutant, in_words: bool) -> Result<Summary, String> {
    judge(World::new(setup(seed, mutant)), in_words, drive)
}

/// Lets something happen in a world, and tells what broke.
pub fn judge(mut world: World, in_words: bool, drive: impl FnOnce(&mut World)) -> Result<Summary, String> {
    world.trace.in_words = in_words;
    let result = quietly(|| drive(&mut world));
    let summary = Summary { checksum: world.trace.checksum, events: world.trace.events, counts: world.oracle.counts };
    result.map(|()| summary).map_err(|text| format!("{}\n{text}", world.trace.words()))
}

/// Lets something happen that may panic, and tells with which words.
pub fn quietly(act: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                shown(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(act));
    QUIET.set(false);
    result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Runs a seed that must hold; if it does not, runs it again in words.
pub fn must_hold(seed: u64) -> Summary {
    match run(seed, Mutant::None, false) {
        Ok(summary) => summary,
        Err(text) => {
            let in_words = run(seed, Mutant::None, true).expect_err("the same seed breaks the same way");
            panic!("seed {seed}:\n{in_words}\n\nseed {seed}: {text}");
        }
    }
}

//! A history of events, predictions and lookups, applied to the index and to the naive one of its tests: they agree, and
//! where the index had to forget to hold its budget it says less, never more.
#![no_main]

#[path = "../../../indexer/tests/naive/mod.rs"]
mod naive;

use arbitrary::{Arbitrary, Result, Unstructured};
use kvlane_indexer::{Index, IndexConfig, PredictedConfig, Tick, Tier};
use libfuzzer_sys::fuzz_target;
use naive::{Naive, Path, Step, WORKERS, agree, apply, config, sequence, worker};

/// A worker, what it is expected to hold, and since when.
type Prediction = (u64, Path, u32);

const LIFE: u32 = 50;
const RESOLUTION: u32 = 25;
const LONGEST: usize = 120;

fn path(from: &mut Unstructured<'_>) -> Result<Path> {
    // A run of one letter, and another way to end.
    let run = from.int_in_range(0..=40_usize)?;
    let mut path = vec![from.int_in_range(0..=1)?; run];
    path.extend(Vec::<u8>::arbitrary(from)?.iter().take(8).map(|byte| byte % 3));
    path.resize(path.len().max(1), 2);
    Ok(path)
}

fn tier(from: &mut Unstructured<'_>) -> Result<Tier> {
    Ok(Tier::ALL[from.int_in_range(0..=7_usize)?.saturating_sub(5)])
}

fn step(from: &mut Unstructured<'_>) -> Result<Step> {
    let kind = from.int_in_range(0..=15)?;
    let n = from.int_in_range(0..=WORKERS - 1)?;
    Ok(match kind {
        0..=6 => {
            Step::Store { worker: n, tier: tier(from)?, path: path(from)?, from: from.int_in_range(0..=40)? }
        }
        7..=9 => {
            let picks = Vec::<u16>::arbitrary(from)?.into_iter().take(4).map(usize::from).collect();
            Step::Remove { worker: n, tier: tier(from)?, picks }
        }
        10..=12 => {
            Step::RemovePath { worker: n, tier: tier(from)?, path: path(from)?, backwards: from.arbitrary()? }
        }
        13 => Step::Clear { worker: n, tier: if from.arbitrary()? { Some(tier(from)?) } else { None } },
        14 => Step::Forget { worker: n },
        _ => Step::Restore,
    })
}

fn shared(one: &[u8], other: &[u8]) -> u32 {
    one.iter().zip(other).take_while(|(one, other)| one == other).count() as u32
}

/// What is expected of a worker is no more than was predicted and has not died, and no less than will not die soon.
fn expects(index: &Index, predictions: &[Prediction], prompt: &[u8], now: u32) {
    let overlap = index.overlap(&sequence(prompt), Tick(now));
    for n in 0..WORKERS {
        let most = |life: u32| {
            let alive = predictions.iter().filter(|(of, _, at)| *of == n && now < at + life);
            alive.map(|(_, path, _)| shared(path, prompt)).max().unwrap_or(0)
        };
        let found = overlap.of(worker(n)).predicted;
        assert!((most(LIFE - RESOLUTION)..=most(LIFE)).contains(&found), "worker {n} at {now}: {found}");
    }
}

fn history(from: &mut Unstructured<'_>) -> Result<()> {
    let predicted = PredictedConfig { life: LIFE, resolution: RESOLUTION, max_blocks: 1 << 20 };
    let max_bytes = if from.arbitrary()? { 1 << 30 } else { 1 << from.int_in_range(11..=14)? };
    let config = IndexConfig { max_bytes, predicted, ..config() };
    let (mut index, mut naive) = (Index::new(config), Naive::new(config));
    let (mut predictions, mut now): (Vec<Prediction>, u32) = (Vec::new(), 1);
    for _ in 0..LONGEST {
        if from.is_empty() {
            break;
        }
        if from.ratio(1, 6)? {
            let (n, path) = (from.int_in_range(0..=WORKERS - 1)?, path(from)?);
            now += from.int_in_range(0..=30)?;
            if index.predict(worker(n), &sequence(&path), Tick(now)) {
                predictions.push((n, path.clone(), now));
            }
            expects(&index, &predictions, &path, now);
            continue;
        }
        let step = step(from)?;
        apply(&mut index, &mut naive, &step);
        index.check();
        let room = index.bytes() <= max_bytes || index.stats().distinct_blocks == 0;
        assert!(room, "{} bytes, at most {max_bytes}", index.bytes());
        match &step {
            Step::Store { path, .. } | Step::RemovePath { path, .. } => agree(&index, &naive, path),
            Step::Forget { worker } => predictions.retain(|(of, ..)| of != worker),
            Step::Restore => predictions.clear(),
            _ => {}
        }
        let prompt = path(from)?;
        agree(&index, &naive, &prompt);
        expects(&index, &predictions, &prompt, now);
    }
    assert!(naive.knows_more || index.stats().forgotten_blocks_total == 0);
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    let _ = history(&mut Unstructured::new(bytes));
});

//! What the simulated engine promises.

use kvlane_indexer::{Index, IndexConfig, Tick, WorkerId};
use proptest::prelude::*;

use super::*;
use crate::sim::Speculation;

fn calibration() -> Calibration {
    Calibration::preset(Calibration::DEFAULT).unwrap()
}

/// A request over a shared document and a conversation of its own.
fn request(id: u64, conversation: u64, shared: usize, prompt: usize, output: usize, block: usize) -> Request {
    let content = |at: usize| if at < shared { at as u64 } else { conversation << 32 | at as u64 };
    Request {
        id: RequestId(id),
        prompt_tokens: prompt,
        output_tokens: output,
        blocks: (0..(prompt + output) / block).map(|at| BlockHash(content(at) + 1)).collect(),
        priority: 0,
    }
}

struct Run {
    finished: Vec<Finished>,
    first: Vec<(RequestId, SimTime)>,
    events: Vec<KvEvent>,
    tokens: usize,
}

/// Steps until there is nothing left to do.
fn run(engine: &mut SimEngine, mut now: SimTime) -> Run {
    let mut run = Run { finished: Vec::new(), first: Vec::new(), events: Vec::new(), tokens: 0 };
    let mut output = StepOutput::default();
    for _ in 0..1_000_000 {
        engine.step(now, &mut output);
        run.tokens += output.tokens.iter().map(|out| out.count).sum::<usize>();
        run.first
            .extend(output.tokens.iter().filter(|out| out.first.is_some()).map(|out| (out.request, out.at)));
        run.finished.append(&mut output.finished);
        run.events.append(&mut output.events);
        match output.next {
            Some(next) => now = next,
            None => return run,
        }
    }
    panic!("the engine never came to rest");
}

#[test]
fn a_lone_request_takes_prefill_decode_and_lag() {
    let mut engine = SimEngine::new(calibration(), 1);
    engine.submit(SimTime(0), request(1, 1, 0, 1000, 3, 32)).unwrap();
    let run = run(&mut engine, SimTime(0));
    // One prefill step, then the lag of one decode step of an empty batch.
    let prefill = 20.3 + 11.0 + 145.0;
    assert!((run.first[0].1.ms_since(SimTime(0)) - (prefill + 20.3)).abs() < 1e-3);
    let done = run.finished[0];
    assert_eq!((done.prompt_tokens, done.output_tokens, done.cached_tokens, run.tokens), (1000, 3, 0, 3));
    let decode = 20.3 + 39e-6 * 1001.0;
    let end = prefill + decode + (20.3 + 39e-6 * 1002.0) * 2.0;
    assert!(
        (done.at.ms_since(SimTime(0)) - end).abs() < 0.01,
        "{} instead of {end}",
        done.at.ms_since(SimTime(0))
    );
}

#[test]
fn the_second_turn_computes_only_what_is_new() {
    let mut engine = SimEngine::new(calibration(), 1);
    engine.submit(SimTime(0), request(1, 1, 100, 3500, 200, 32)).unwrap();
    let first = run(&mut engine, SimTime(0));
    engine.submit(SimTime(0), request(2, 1, 100, 3760, 10, 32)).unwrap();
    let second = run(&mut engine, SimTime(0));
    assert_eq!((first.finished[0].cached_tokens, second.finished[0].cached_tokens), (0, 3700 / 32 * 32));
    // A prompt that is cached whole still computes its last block.
    engine.submit(SimTime(0), request(3, 1, 100, 3520, 10, 32)).unwrap();
    assert_eq!(run(&mut engine, SimTime(0)).finished[0].cached_tokens, 3488);
}

#[test]
fn long_prompts_are_prefilled_in_chunks_and_announced_as_they_go() {
    let mut engine = SimEngine::new(Calibration { max_num_tokens: 1024, ..calibration() }, 1);
    engine.submit(SimTime(0), request(1, 1, 0, 2500, 40, 32)).unwrap();
    let run = run(&mut engine, SimTime(0));
    let sizes: Vec<_> = run
        .events
        .iter()
        .map(|event| match event {
            KvEvent::Stored { blocks, .. } => blocks.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [32, 32, 14, 1], "1024 + 1024 + 452 tokens, then one block of the answer");
}

#[test]
fn no_more_than_the_slots_run_and_the_rest_waits_its_turn() {
    let mut engine = SimEngine::new(Calibration { max_batch: 2, ..calibration() }, 1);
    for id in 0..4 {
        let mut request = request(id, id, 0, 100, 20, 32);
        request.priority = i32::from(id == 3);
        engine.submit(SimTime(0), request).unwrap();
    }
    let mut output = StepOutput::default();
    engine.step(SimTime(0), &mut output);
    assert_eq!((engine.running_count(), engine.waiting_count()), (2, 2));
    let run = run(&mut engine, SimTime(0));
    let order: Vec<_> = run.first.iter().map(|(request, _)| request.0).collect();
    assert_eq!(order, [3, 0, 1, 2], "priority first, then arrival");
    assert!(run.finished.iter().filter(|done| done.queued_ms > 0.0).count() == 2);
}

#[test]
fn a_cancelled_request_frees_its_slot_and_its_blocks() {
    let mut engine = SimEngine::new(calibration(), 1);
    let mut output = StepOutput::default();
    for id in 0..3 {
        engine.submit(SimTime(0), request(id, id, 0, 500, 100, 32)).unwrap();
    }
    engine.step(SimTime(0), &mut output);
    engine.step(output.next.unwrap(), &mut output);
    assert!(engine.cancel(RequestId(0)) && engine.cancel(RequestId(1)) && !engine.cancel(RequestId(0)));
    let run = run(&mut engine, output.next.unwrap());
    assert_eq!(run.finished.len(), 1);
    assert_eq!(engine.block_counts().0, 0);
}

#[test]
fn requests_that_cannot_be_served_are_refused() {
    let mut engine = SimEngine::new(Calibration { kv_blocks: 10, ..calibration() }, 1);
    let too_long = engine.submit(SimTime(0), request(1, 1, 0, 400, 10, 32)).unwrap_err();
    assert_eq!(too_long.to_string(), "request needs 13 blocks of KV cache, expected at most 10");
    let mut wrong = request(1, 1, 0, 100, 10, 32);
    wrong.blocks.pop();
    assert_eq!(engine.submit(SimTime(0), wrong), Err(SubmitError::WrongBlocks { found: 2, expected: 3 }));
    let empty = engine.submit(SimTime(0), request(1, 1, 0, 0, 10, 32));
    assert_eq!(empty, Err(SubmitError::Empty { field: "prompt" }));
}

#[test]
fn drafting_gives_several_tokens_a_step() {
    let draft = Calibration::preset("h200-llama70b-eagle3").unwrap();
    let mut engine = SimEngine::new(draft, 7);
    engine.submit(SimTime(0), request(1, 1, 0, 100, 1000, 32)).unwrap();
    let mut output = StepOutput::default();
    let (mut now, mut steps, mut tokens) = (SimTime(0), 0, 0);
    loop {
        engine.step(now, &mut output);
        tokens += output.tokens.iter().map(|out| out.count).sum::<usize>();
        steps += usize::from(!output.tokens.is_empty());
        let Some(next) = output.next else { break };
        now = next;
    }
    assert_eq!(tokens, 1000);
    let per_step = tokens as f64 / steps as f64;
    assert!((4.5..5.2).contains(&per_step), "1 + 5 x 0.77 = 4.85, got {per_step}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Under any load the engine ends empty, serves everything, and an index fed by its events knows exactly
    /// what the next request would find.
    #[test]
    fn events_tell_the_truth_about_the_cache(
        requests in prop::collection::vec((0_u64..6, 0_usize..8, 33_usize..600, 1_usize..120, prop::sample::select(vec![-1, 0, 0, 1]), any::<bool>()), 1..40),
        kv_blocks in 24_usize..80,
        reserve_output in any::<bool>(),
        max_batch in 1_usize..6,
        drafts in prop::option::of(1_usize..70),
    ) {
        let speculation = drafts.map(|draft_tokens| Speculation {
            draft_tokens,
            acceptance: 0.8,
            draft_ms: 1.0,
            verify_ms_per_token: 0.1,
        });
        let calibration =
            Calibration { kv_blocks, reserve_output, max_batch, max_num_tokens: 256, speculation, ..calibration() };
        let mut engine = SimEngine::new(calibration, 3);
        let index = Index::new(IndexConfig::default());
        let worker = WorkerId::new(1, 0);
        let mut output = StepOutput::default();
        let (mut now, mut expected, mut finished, mut owed, mut given) = (SimTime(0), 0, 0, 0, 0);
        let feed = |output: &StepOutput| {
            for event in &output.events {
                let applied = index.apply(worker, event, Tick(1)).unwrap();
                prop_assert_eq!((applied.orphaned, applied.unknown), (0, 0), "{:?}", event);
            }
            Ok(())
        };
        for (id, (conversation, shared, prompt, answer, priority, pause)) in requests.into_iter().enumerate() {
            let mut request = request(id as u64, conversation, shared, prompt, answer, 32);
            request.priority = priority;
            let prompt_blocks = request.blocks[..prompt / 32].iter().copied();
            let hashes: Vec<_> = SequenceHash::chain(None, prompt_blocks).collect();
            let known = index.overlap(&hashes, Tick(1)).of(worker).device as usize;
            prop_assert_eq!(known, engine.cache.ready_prefix(&hashes));
            if engine.submit(now, request).is_ok() {
                expected += 1;
                owed += answer;
            }
            if pause {
                engine.step(now, &mut output);
                feed(&output)?;
                finished += output.finished.len();
                given += output.tokens.iter().map(|out| out.count).sum::<usize>();
                now = output.next.unwrap_or(now);
            }
        }
        for _ in 0..200_000 {
            engine.step(now, &mut output);
            feed(&output)?;
            finished += output.finished.len();
            given += output.tokens.iter().map(|out| out.count).sum::<usize>();
            prop_assert!(engine.cache.len() + engine.reserved <= kv_blocks.max(engine.cache.pinned() + engine.reserved));
            match output.next { Some(next) => now = next, None => break }
        }
        prop_assert_eq!((finished, engine.running_count(), engine.waiting_count()), (expected, 0, 0));
        prop_assert_eq!(given, owed, "every token of every answer comes out once");
        prop_assert_eq!((engine.block_counts().0, engine.context), (0, 0));
        prop_assert_eq!(index.stats().workers.first().map_or(0, |stats| stats.device_blocks), engine.cache.len());
    }
}

//! Everything is killed in turn while conversations run: a short form of `make chaos`.

use std::time::Duration;

use crate::processes::{ALONE, nats_server, programs};
use kvlane_loadtest::chaos::{Bench, Chaos, Layout, Outcome, Rhythm, Script};

#[tokio::test(flavor = "multi_thread")]
async fn processes_die_and_no_request_is_lost_before_its_first_byte() {
    let _alone = ALONE.lock().await;
    let layout = Layout { programs: Some(programs()), ..Layout::new(19_300, nats_server()) };
    let away = (Duration::from_millis(500), Duration::from_millis(2000));
    let chaos = Chaos {
        script: Script { concurrency: 20, think_s: 0.3, seed: 3, ..Script::default() },
        rhythm: Rhythm { every: Duration::from_millis(1200), away, merciless: false, seed: 3 },
        how_long: Duration::from_secs(26),
        layout: layout.clone(),
    };
    let mut bench = Bench::new("chaos-test", layout).unwrap();
    let report = chaos.run(&mut bench, |line| println!("{line}")).await.unwrap();
    bench.stop().await;
    let text = report.text();
    println!("{text}");
    for kind in ["worker", "bridge", "nats", "router"] {
        assert!(report.kills.get(kind).is_some_and(|kills| *kills > 0), "no {kind} was killed: {text}");
    }
    // Whether caches are hit as before takes longer to say.
    let (last, promised) = report.targets.split_last().unwrap();
    assert_eq!(last.what, "caches are hit as before");
    assert!(promised.iter().all(|target| target.met), "{text}");
    let whole = |outcome: Outcome| matches!(outcome, Outcome::Whole | Outcome::WholeAfterRetry);
    let answered: u64 =
        report.outcomes.iter().filter(|c| whole(c.row.outcome)).map(|counted| counted.requests).sum();
    assert!(answered * 10 > report.requests * 8, "{text}");
}

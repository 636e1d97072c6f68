//! Two routers behind a balancer: one is killed, the other takes over, and a third begins where they were.

use std::time::Duration;

use crate::processes::{ALONE, Scene, until};
use kvlane_loadtest::chaos::{Outcome, Part, Script};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn a_router_dies_alone_and_a_new_one_knows_what_it_knew() {
    let _alone = ALONE.lock().await;
    let mut scene = Scene::start("routers", 19_220, |_| {}).await;
    let script = Script { concurrency: 16, think_s: 0.05, ..Script::default() };
    let (conversations, tally) = scene.talk(script);
    // Caches fill first, so that shares can be compared.
    until("answers", || async { tally.all() > 300 }).await;
    let warm = tally.elapsed();
    until("answers from caches", || async { tally.all() > 600 }).await;
    let before = tally.cached_share(warm, tally.elapsed()).unwrap();

    tally.killed(Part::Router(0));
    scene.bench.kill(Part::Router(0)).await.unwrap();
    let (died, so_far) = (tally.elapsed(), tally.all());
    until("answers by the other router", || async { tally.all() > so_far + 100 }).await;
    // Exactly what it had in hand is lost: nothing of the other router's, and nothing that came after.
    let rows = tally.rows();
    assert_eq!(tally.unexplained(), (0, Vec::new()), "{rows:?}");
    assert_eq!(tally.lost_with(1), 0, "{rows:?}");
    assert_eq!((tally.count(Outcome::FailedBefore), tally.count(Outcome::CutTold)), (0, 0), "{rows:?}");
    let (lost, cut) = (tally.lost_with(0), tally.count(Outcome::CutSilently));
    assert!(lost <= 16, "it had no more than every conversation: {rows:?}");
    assert_eq!(lost, cut + tally.count(Outcome::WholeAfterRetry), "{rows:?}");

    let started = Instant::now();
    scene.bench.start(Part::Router(0)).unwrap();
    until("a router that says it is ready", || scene.bench.is_ready(0)).await;
    let ready = started.elapsed();
    // All of them are known to it, and none is taken to be empty: caches change under load, and differ by what is on its way.
    let mut held = Vec::new();
    for worker in 0..4 {
        held.push((scene.held(0, worker).await, scene.held(1, worker).await));
    }
    let warm = |(new, old): &(u64, u64)| *new * 10 >= *old * 9 && *new > 0;
    assert!(held.iter().all(warm), "blocks held as the new router and the old one see it: {held:?}");
    tally.back(Part::Router(0));
    let back = tally.elapsed();
    // Conversations come to the new one as they begin: it has fewer connections.
    until("answers by the new router", || async {
        tally.elapsed() > back + Duration::from_secs(3) && scene.balancer.connections(0) > 2
    })
    .await;
    let answered = tally.all();
    until("answers by both", || async { tally.all() > answered + 300 }).await;
    let after = tally.cached_share(back, tally.elapsed()).unwrap();
    println!(
        "router killed after {died:?} with {lost} requests in hand, {cut} of them in mid-answer; new router ready and warm after \
         {} ms (target 2000); blocks (new, old) {held:?}; cached before {before:.3}, after {after:.3}",
        ready.as_millis()
    );
    assert!(after > before - 0.1, "cached before {before}, after {after}");
    conversations.finish().await.unwrap();
    assert_eq!(tally.wrong_texts(), 0);
    // At rest both have the same view.
    until("rest", || scene.is_at_rest()).await;
    until("two equal views", || async {
        let mut same = true;
        for worker in 0..4 {
            same &= scene.held(0, worker).await == scene.held(1, worker).await;
        }
        same
    })
    .await;
    scene.bench.stop().await;
}

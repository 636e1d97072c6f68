//! A rolling restart under load: every router, then every engine, one at a time, and no client notices.

use crate::processes::{ALONE, Scene, until};
use kvlane_loadtest::chaos::{Outcome, Part, Script};

#[tokio::test(flavor = "multi_thread")]
async fn routers_and_engines_are_replaced_and_no_client_notices() {
    let _alone = ALONE.lock().await;
    let flags = ["--set=server.drain_wait_s=1", "--drain-timeout-s=20"].map(str::to_owned);
    let mut scene = Scene::start("upgrade", 19_100, |layout| layout.router_flags = flags.to_vec()).await;
    // Some are at their next question before a router that leaves could have closed their connection.
    let script = Script { concurrency: 16, think_s: 0.02, ..Script::default() };
    let (conversations, tally) = scene.talk(script);
    until("answers", || async { tally.all() > 50 }).await;
    for router in 0..2 {
        let before = tally.all();
        let ended = scene.bench.terminate(Part::Router(router)).await.unwrap();
        assert!(ended.success(), "{ended}");
        scene.bench.start(Part::Router(router)).unwrap();
        scene.bench.until_ready(router, 4).await.unwrap();
        until("answers by the new one", || async { tally.all() > before + 50 }).await;
        assert_eq!(tally.count(Outcome::Whole), tally.all(), "router {router}: {:?}", tally.rows());
    }
    for worker in 0..4 {
        for router in 0..2 {
            scene.bench.drain(router, worker, true).await.unwrap();
        }
        until("a worker without load", || async { scene.load(worker).await == 0 }).await;
        let ended = scene.bench.terminate(Part::Worker(worker)).await.unwrap();
        assert!(ended.success(), "{ended}");
        scene.bench.start(Part::Worker(worker)).unwrap();
        for router in 0..2 {
            until("a worker that answers again", || async {
                scene.worker(router, worker).await["state"] == "draining"
            })
            .await;
            scene.bench.drain(router, worker, false).await.unwrap();
            scene.bench.until_ready(router, 4).await.unwrap();
        }
        assert_eq!(tally.count(Outcome::Whole), tally.all(), "worker {worker}: {:?}", tally.rows());
    }
    let before = tally.all();
    until("answers by all that is new", || async { tally.all() > before + 50 }).await;
    conversations.finish().await.unwrap();
    assert_eq!(tally.count(Outcome::Whole), tally.all(), "{:?}", tally.rows());
    assert_eq!(tally.wrong_texts(), 0);
    until("rest", || scene.is_at_rest()).await;
    scene.bench.stop().await;
}

/// Not even a moment's notice: connections that are in use are closed when they are quiet, never under a request.
#[tokio::test(flavor = "multi_thread")]
async fn a_router_that_leaves_at_once_takes_no_request_along() {
    let flags = ["--set=server.drain_wait_s=0", "--drain-timeout-s=20"].map(str::to_owned);
    let mut scene = Scene::start("leaving", 19_160, |layout| layout.router_flags = flags.to_vec()).await;
    // The next question comes right behind the answer.
    let script = Script { concurrency: 16, think_s: 0.0, ..Script::default() };
    let (conversations, tally) = scene.talk(script);
    for round in 0..4 {
        let (router, before) = (round % 2, tally.all());
        until("answers", || async { tally.all() > before + 50 }).await;
        scene.bench.terminate(Part::Router(router)).await.unwrap();
        scene.bench.start(Part::Router(router)).unwrap();
        scene.bench.until_ready(router, 4).await.unwrap();
    }
    conversations.finish().await.unwrap();
    assert_eq!(tally.count(Outcome::Whole), tally.all(), "{:?}", tally.rows());
    assert_eq!(tally.wrong_texts(), 0);
    until("rest", || scene.is_at_rest()).await;
    scene.bench.stop().await;
}

//! What is cached where, as the router has it, with the topics that conversations are about.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::administration::Administration;
use super::infrastructure::{cached_blocks, evicted_blocks};
use crate::live::{Book, Opening};

#[derive(Clone, Debug, Serialize)]
struct Holder {
    worker: String,
    blocks: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Node {
    id: usize,
    parent: Option<u64>,
    start: u64,
    blocks: u64,
    below: u64,
    topic: Option<Arc<str>>,
    holders: Vec<Holder>,
}

#[derive(Clone, Debug, Serialize)]
struct Cache {
    name: String,
    cached_blocks: Option<u64>,
    evicted_blocks: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Tree {
    at: f64,
    nodes: Vec<Node>,
    left_out: u64,
    /// Why there is nothing to see.
    note: Option<String>,
    index: Value,
    workers: Vec<Cache>,
}

/// The last look, and what is known of topics.
#[derive(Debug, Default)]
pub(super) struct Trees {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    last: Option<(Instant, Arc<Tree>)>,
    topics: Topics,
}

/// However many look.
const FRESH: Duration = Duration::from_secs(1);
/// Openings whose blocks are asked for in one look, so that none takes long.
const ASKED: usize = 8;

impl Trees {
    pub(super) async fn look(&self, router: &Administration, book: &Book) -> anyhow::Result<Arc<Tree>> {
        // Held while the router is asked: whoever comes meanwhile has the same answer.
        let mut inner = self.inner.lock().await;
        if let Some((at, tree)) = &inner.last
            && at.elapsed() < FRESH
        {
            return Ok(tree.clone());
        }
        inner.topics.learn(router, book.openings()).await;
        let (tree, index, workers) = (router.tree().await?, router.index().await?, router.workers().await?);
        let tree = Arc::new(read(&tree, index, &workers, &inner.topics));
        inner.last = Some((Instant::now(), tree.clone()));
        Ok(tree)
    }
}

/// Which blocks are whose.
#[derive(Debug, Default)]
struct Topics {
    known: Vec<(Opening, HashSet<String>)>,
}

impl Topics {
    /// Asks for what is new, and forgets what the book forgot.
    async fn learn(&mut self, router: &Administration, openings: Vec<Opening>) {
        let same = |one: &Opening, other: &Opening| Arc::ptr_eq(&one.text, &other.text);
        self.known.retain(|(known, _)| openings.iter().any(|opening| same(known, opening)));
        let new =
            openings.into_iter().filter(|opening| !self.known.iter().any(|(known, _)| same(known, opening)));
        for opening in new.take(ASKED).collect::<Vec<_>>() {
            // One that cannot be had is asked for again at the next look.
            if let Ok(blocks) = router.blocks(&opening.text).await {
                self.known.push((opening, blocks.into_iter().collect()));
            }
        }
    }

    /// The topic of a block that belongs to one only.
    fn of(&self, block: &str) -> Option<Arc<str>> {
        let mut found =
            self.known.iter().filter(|(_, blocks)| blocks.contains(block)).map(|(of, _)| &of.topic);
        let first = found.next()?;
        found.all(|other| other == first).then(|| first.clone())
    }
}

fn read(tree: &Value, index: Value, workers: &Value, topics: &Topics) -> Tree {
    let number = |of: &Value| of.as_u64().unwrap_or(0);
    let list = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let node = |(id, node): (usize, &Value)| Node {
        id,
        parent: node["parent"].as_u64(),
        start: number(&node["start"]),
        blocks: number(&node["blocks"]),
        below: number(&node["held_below"]),
        topic: node["first"].as_str().and_then(|first| topics.of(first)),
        holders: holders(&list(&node["holders"])),
    };
    let cache = |worker: &Value| Cache {
        name: worker["name"].as_str().unwrap_or_default().to_owned(),
        cached_blocks: cached_blocks(worker),
        evicted_blocks: evicted_blocks(worker),
    };
    let mut workers: Vec<Cache> = list(&workers["workers"]).iter().map(cache).collect();
    workers.sort_by(|one, other| one.name.cmp(&other.name));
    Tree {
        at: tree["at"].as_f64().unwrap_or(0.0),
        nodes: list(&tree["nodes"]).iter().enumerate().map(node).collect(),
        left_out: number(&tree["left_out"]),
        note: tree["note"].as_str().map(str::to_owned),
        workers,
        index,
    }
}

/// Of a worker's ranks the one that holds most.
fn holders(holders: &[Value]) -> Vec<Holder> {
    let mut most: HashMap<&str, u64> = HashMap::new();
    for holder in holders {
        let Some((worker, blocks)) = holder["worker"].as_str().zip(holder["blocks"].as_u64()) else {
            continue;
        };
        let held = most.entry(worker).or_default();
        *held = blocks.max(*held);
    }
    let mut holders: Vec<Holder> =
        most.into_iter().map(|(worker, blocks)| Holder { worker: worker.to_owned(), blocks }).collect();
    holders.sort_by(|one, other| one.worker.cmp(&other.worker));
    holders
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_have_the_topic_that_is_theirs_alone() {
        let opening = |topic: &str| Opening { topic: topic.into(), text: topic.into() };
        let blocks = |names: [&str; 2]| names.map(str::to_owned).into_iter().collect();
        let topics =
            Topics { known: vec![(opening("a"), blocks(["s", "x"])), (opening("b"), blocks(["s", "y"]))] };
        let held = |rank: u64, blocks: u64| json!({"worker": "w", "id": 1, "rank": rank, "blocks": blocks});
        let tree = json!({"at": 5.0, "left_out": 2, "note": null, "nodes": [
            {"parent": null, "first": "s", "start": 0, "blocks": 3, "held_below": 9, "holders": [held(0, 2), held(1, 3)]},
            {"parent": 0, "first": "y", "start": 3, "blocks": 4, "held_below": 4, "holders": []},
        ]});
        let workers = json!({"workers": [{
            "name": "w", "load": [{"held_blocks": 7}], "events": {"ranks": [{"removed_blocks": 2}]},
        }]});
        let tree = read(&tree, json!({"nodes": 4}), &workers, &topics);
        assert_eq!((tree.nodes[0].topic.as_deref(), tree.nodes[1].topic.as_deref()), (None, Some("b")));
        assert_eq!((tree.nodes[0].holders.len(), tree.nodes[0].holders[0].blocks), (1, 3));
        assert_eq!((tree.workers[0].cached_blocks, tree.workers[0].evicted_blocks), (Some(7), Some(2)));
        assert_eq!((tree.left_out, tree.nodes[1].parent), (2, Some(0)));
    }
}

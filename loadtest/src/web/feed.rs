//! What a page is told without asking: one message a second and one for every change, the same for whoever listens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, Utf8Bytes, WebSocket};
use kvlane_engine_adapters::process::since_1970;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio::time::{Instant, MissedTickBehavior};

use super::Web;
use super::history::{History, Mark, Point};
use super::stage::Run;
use crate::gauges;
use crate::results::LevelFigures;

/// Live figures are of the last minute; what is drawn, of less, so that a change is seen at once.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
pub(super) const SHORT_WINDOW: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_secs(1);
/// While nothing runs, so often, so that a page sees that somebody is there.
const IDLE_TICKS: u64 = 5;
/// Workers and the router are asked every so many ticks.
const LOOK_TICKS: u64 = 2;
const PING: Duration = Duration::from_secs(10);
/// Messages a listener may be behind; one that is further behind begins anew.
const AHEAD: usize = 64;

pub(super) struct Feed {
    sender: broadcast::Sender<Utf8Bytes>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    history: History,
    state: Value,
    sample: Value,
    workers: Value,
    sweep: Value,
    router: RouterSeen,
}

/// What the router said last.
#[derive(Clone, Default)]
struct RouterSeen {
    mode: Value,
    policy: Value,
    /// How often its mode was set from here: an answer from before is not news.
    set: u64,
    queued: Option<f64>,
    before_first_token: Option<f64>,
    hit_pct: Option<f64>,
    hit_from: Option<&'static str>,
    /// Cached and all prompt tokens so far, over the last minute.
    tokens: VecDeque<(Instant, f64, f64)>,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sender: broadcast::Sender::new(AHEAD), kept: Mutex::default() }
    }
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Feed").field("listeners", &self.sender.receiver_count()).finish_non_exhaustive()
    }
}

impl Feed {
    fn say(&self, message: &Value) {
        let _ = self.sender.send(message.to_string().into());
    }

    pub(super) fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Utf8Bytes> {
        self.sender.subscribe()
    }

    /// Something was done that explains what figures do next.
    pub(super) fn mark(&self, kind: &'static str, label: impl Into<String>) {
        let mark = Mark { t: since_1970().as_secs_f64(), kind, label: label.into() };
        let said = json!({"type": "mark", "t": mark.t, "kind": kind, "label": mark.label});
        // Whoever comes between the two has it twice rather than never.
        self.kept.lock().history.mark(mark);
        self.say(&said);
    }

    /// The router was told another mode from here.
    pub(super) fn switched(&self, web: &Web, mode: &Value) {
        self.kept.lock().router.set += 1;
        self.routed(web, mode);
    }

    /// The router has this mode, whoever set it.
    fn routed(&self, web: &Web, mode: &Value) {
        let before = {
            let router = &mut self.kept.lock().router;
            router.policy = mode["policy"].clone();
            std::mem::replace(&mut router.mode, mode["mode"].clone())
        };
        if let Some(now) = mode["mode"].as_str()
            && before.is_string()
            && before != now
        {
            self.mark("mode", now);
        }
        self.tell_state(web);
    }

    /// Everything there is to know, for one who has just come.
    fn hello(&self, web: &Web) -> Value {
        let sweep = web.sweeps.progress();
        let kept = self.kept.lock();
        json!({
            "type": "hello",
            "version": env!("CARGO_PKG_VERSION"),
            "instance": web.instance,
            "brand": {"title": web.about.title, "subtitle": web.about.subtitle},
            "can": web.can(),
            "objective": web.objective(),
            "slider": web.slider(),
            "speed": web.about.speed,
            "note": web.about.note,
            "target": web.target(),
            "model": web.about.model,
            "window_s": WINDOW.as_secs(),
            "short_window_s": SHORT_WINDOW.as_secs(),
            "history": kept.history.columns(),
            "marks": kept.history.marks(),
            "state": kept.state,
            "sample": kept.sample,
            "workers": kept.workers,
            "sweep": sweep,
        })
    }

    pub(super) fn state(&self, web: &Web) -> Value {
        let (mode, policy) = {
            let kept = self.kept.lock();
            (kept.router.mode.clone(), kept.router.policy.clone())
        };
        let sweep = web.sweeps.on_stage();
        let scene = web.stage.as_ref().map(|stage| stage.scene());
        let (since, error) = scene.as_ref().map_or((None, None), |scene| (scene.since, scene.error.clone()));
        json!({
            "type": "state", "run": web.run(), "since": since, "level": web.level(), "mode": mode, "policy": policy,
            "sweep": sweep, "error": error,
        })
    }

    /// Tells a new state, if it is one.
    pub(super) fn tell_state(&self, web: &Web) {
        let state = self.state(web);
        let news = {
            let mut kept = self.kept.lock();
            let news = kept.state != state;
            kept.state.clone_from(&state);
            news
        };
        if news {
            self.say(&state);
        }
    }

    /// Tells where the latest sweep stands, if that is news.
    pub(super) fn tell_sweep(&self, web: &Web) {
        let sweep = web.sweeps.progress();
        let news = {
            let mut kept = self.kept.lock();
            let news = kept.sweep != sweep;
            kept.sweep.clone_from(&sweep);
            news
        };
        if news {
            self.say(&sweep);
        }
    }

    fn tell_sample(&self, web: &Web) {
        let live = web.shown.live().filter(|_| web.run() == Run::Running);
        let t = since_1970().as_secs_f64();
        let mut kept = self.kept.lock();
        let router = kept.router.clone();
        let mut sample = json!({
            "type": "sample", "t": t, "figures": {}, "short": {}, "requests": null, "errors": null, "active": 0,
            "kv_hit_pct": null, "kv_hit_from": null, "queued": null, "before_first_token": null,
        });
        if let Some(live) = live {
            let (figures, tpot) = live.collector.seen(WINDOW);
            let (short, short_tpot) = live.collector.seen(SHORT_WINDOW);
            let (requests, _, _, errors) = live.collector.totals();
            let hit_from = router.hit_from.or(figures.hit_pct.map(|_| "client"));
            kept.history.add(Point {
                t,
                ttft_p50_ms: short.ttft_p50_ms,
                ttft_p95_ms: short.ttft_p95_ms,
                tpot_p50_ms: short_tpot[0],
                tpot_p95_ms: short_tpot[1],
                tops: short.tops,
                hit_pct: short.hit_pct,
                active: live.collector.active(),
            });
            sample["figures"] = with_tpot(&figures, tpot);
            sample["short"] = with_tpot(&short, short_tpot);
            sample["requests"] = requests.into();
            sample["errors"] = errors.iter().map(|(_, count)| count).sum::<u64>().into();
            sample["active"] = live.collector.active().into();
            sample["kv_hit_pct"] = json!(router.hit_pct.or(figures.hit_pct));
            sample["kv_hit_from"] = json!(hit_from);
            sample["queued"] = json!(router.queued);
            sample["before_first_token"] = json!(router.before_first_token);
        }
        kept.sample = sample.clone();
        drop(kept);
        self.say(&sample);
    }

    /// Asks the router and the workers how they do.
    async fn look(&self, web: &Web) {
        let set = self.kept.lock().router.set;
        let router = async {
            let Some(router) = &web.router else { return (Value::Null, Vec::new()) };
            let (mode, metrics) = tokio::join!(router.mode(), router.metrics());
            (mode.unwrap_or_default(), metrics.map(|text| gauges::read(&text)).unwrap_or_default())
        };
        let cards = web.infrastructure.look(web.router.as_ref());
        let (cards, prometheus, (mode, metrics)) =
            tokio::join!(cards, web.infrastructure.asked_of_prometheus(), router);
        let cards = serde_json::to_value(&*cards).unwrap_or_default();
        let mut kept = self.kept.lock();
        let seen = &mut kept.router;
        let sum = |name: &str| gauges::sum(&metrics, name);
        seen.queued = sum("kvlane_queue_requests").or(prometheus.queued);
        seen.before_first_token = sum("dynamo_frontend_queued_requests").or(prometheus.before_first_token);
        let counts =
            sum("dynamo_frontend_cached_tokens_sum").zip(sum("dynamo_frontend_input_sequence_tokens_sum"));
        seen.counted(Instant::now(), counts);
        if prometheus.hit_pct.is_some() {
            (seen.hit_pct, seen.hit_from) = (prometheus.hit_pct, Some("prometheus"));
        }
        let still = seen.set == set;
        kept.workers.clone_from(&cards);
        drop(kept);
        self.say(&cards);
        if still {
            self.routed(web, &mode);
        }
    }
}

impl RouterSeen {
    /// The share of the last minute, from counts that only grow.
    fn counted(&mut self, now: Instant, counts: Option<(f64, f64)>) {
        (self.hit_pct, self.hit_from) = (None, None);
        let Some((cached, asked)) = counts else { return };
        // A router that was started anew counts from zero.
        if self.tokens.back().is_some_and(|(_, _, before)| asked < *before) {
            self.tokens.clear();
        }
        self.tokens.push_back((now, cached, asked));
        while self.tokens.len() > 2 && now.saturating_duration_since(self.tokens[0].0) > WINDOW {
            self.tokens.pop_front();
        }
        let (_, cached_before, asked_before) = self.tokens[0];
        self.hit_pct =
            (asked > asked_before).then(|| 100.0 * (cached - cached_before) / (asked - asked_before));
        self.hit_from = self.hit_pct.map(|_| "router");
    }
}

fn with_tpot(figures: &LevelFigures, tpot: [Option<f64>; 2]) -> Value {
    let mut value = serde_json::to_value(figures).unwrap_or_default();
    for (name, ms) in [("tpot_p50_ms", tpot[0]), ("tpot_p95_ms", tpot[1])] {
        if let Some(ms) = ms {
            value[name] = ms.into();
        }
    }
    value
}

/// Says what there is to say, until the program ends.
pub(super) async fn tick(web: Arc<Web>) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = 0_u64;
    let looking = Arc::new(tokio::sync::Semaphore::new(1));
    loop {
        let changes = async {
            match &web.stage {
                Some(stage) => stage.changes().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changes => web.feed.tell_state(&web),
            _ = ticks.tick() => {
                count += 1;
                web.feed.tell_state(&web);
                web.feed.tell_sweep(&web);
                if web.run() == Run::Running || count.is_multiple_of(IDLE_TICKS) {
                    web.feed.tell_sample(&web);
                }
                // Whoever is slow to answer is not asked again meanwhile, and nobody is asked for nobody.
                if count.is_multiple_of(LOOK_TICKS) && web.feed.listeners() > 0
                    && let Ok(turn) = looking.clone().try_acquire_owned()
                {
                    let web = web.clone();
                    tokio::spawn(async move {
                        web.feed.look(&web).await;
                        drop(turn);
                    });
                }
            }
        }
    }
}

/// Tells one listener everything, then what changes, until it leaves or is not heard of any more.
pub(super) async fn listen(
    web: Arc<Web>,
    mut socket: WebSocket,
    mut messages: broadcast::Receiver<Utf8Bytes>,
) {
    web.feed.tell_state(&web);
    let hello = |web: &Web| Message::text(web.feed.hello(web).to_string());
    let mut pings = tokio::time::interval(PING);
    let mut heard_at = Instant::now();
    let mut next = Some(hello(&web));
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => tokio::select! {
                () = web.closing.cancelled() => return,
                message = messages.recv() => match message {
                    Ok(message) => Message::Text(message),
                    // It missed some: from the beginning, and nothing that is older than that.
                    Err(_) => {
                        messages = messages.resubscribe();
                        hello(&web)
                    }
                },
                _ = pings.tick() => {
                    if heard_at.elapsed() > 3 * PING {
                        return;
                    }
                    Message::Ping(axum::body::Bytes::new())
                }
                heard = socket.recv() => match heard {
                    // Nothing a page says over the socket means anything, but that it is there.
                    Some(Ok(_)) => {
                        heard_at = Instant::now();
                        continue;
                    }
                    Some(Err(_)) | None => return,
                },
            },
        };
        // Who does not read is let go: his place may be wanted.
        if !matches!(tokio::time::timeout(PING, socket.send(message)).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_share_of_cached_tokens_is_of_the_last_minute() {
        let mut seen = RouterSeen::default();
        let begin = Instant::now();
        let at = |seconds: u64| begin + Duration::from_secs(seconds);
        seen.counted(at(0), Some((1000.0, 2000.0)));
        assert_eq!((seen.hit_pct, seen.hit_from), (None, None), "nothing to compare with");
        seen.counted(at(2), Some((1090.0, 2100.0)));
        assert_eq!((seen.hit_pct, seen.hit_from), (Some(90.0), Some("router")));
        seen.counted(at(100), Some((1100.0, 2200.0)));
        seen.counted(at(102), Some((1100.0, 2300.0)));
        assert_eq!(seen.hit_pct, Some(0.0), "what was before is over");
        seen.counted(at(104), None);
        assert_eq!((seen.hit_pct, seen.hit_from), (None, None), "who does not answer tells nothing");
        seen.counted(at(106), Some((5.0, 10.0)));
        assert_eq!(seen.hit_pct, None, "a router that was started anew");
        seen.counted(at(108), Some((10.0, 20.0)));
        assert_eq!(seen.hit_pct, Some(50.0));
    }
}

//! The page and what stands behind it: looking at a load, and where it may be, starting, stopping and changing it.

mod administration;
mod assets;
mod baselines;
mod feed;
mod history;
mod infrastructure;
mod problem;
mod stage;
mod sweeps;
mod tree;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::middleware::{Next, from_fn, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use self::administration::Administration;
pub use self::baselines::Baselines;
use self::baselines::{Promise, Table};
use self::feed::Feed;
pub use self::infrastructure::Infrastructure;
pub use self::problem::Problem;
pub use self::stage::{MakeLoad, Play, Run, Scene, Stage};
use self::sweeps::{Sweeps, Wanted};
use self::tree::Trees;
use crate::live::{Book, Conversation, Level, Listing, Shown, routes};
use crate::measure::Objective;

/// What a page says of itself and of what it looks at.
#[derive(Clone, Debug)]
pub struct About {
    pub title: String,
    pub subtitle: String,
    pub model: Option<String>,
    /// So many times the speed of the hardware that engines stand for.
    pub speed: f64,
    /// What has to be known to read the figures right.
    pub note: Option<String>,
    pub objective: Objective,
}

impl Default for About {
    fn default() -> Self {
        Self {
            title: "Serve More Users on the Same GPUs with KV-Aware Routing".to_owned(),
            subtitle: "Kvlane: every turn goes where its cache is warm".to_owned(),
            model: None,
            speed: 1.0,
            note: None,
            objective: Objective::default(),
        }
    }
}

/// Everything a page can see and do; what is not there it can do without.
#[derive(Debug)]
pub struct Web {
    pub shown: Arc<Shown>,
    pub stage: Option<Arc<Stage>>,
    pub router: Option<Administration>,
    pub infrastructure: Infrastructure,
    pub book: Arc<Book>,
    pub baselines: Baselines,
    pub about: About,
    /// To look at only.
    pub read_only: bool,
    /// Somebody else changes the router's mode, again and again.
    pub mode_is_theirs: bool,
    /// Where sweeps are kept; nowhere when none.
    pub sweeps_dir: Option<PathBuf>,
    feed: Feed,
    sweeps: Sweeps,
    trees: Trees,
    /// Who changes load or mode does so alone.
    turn: Mutex<()>,
    explaining: Semaphore,
    closing: CancellationToken,
    /// Another one stands for another process.
    instance: String,
}

/// Levels the page's slider has unless the load is outside of them.
const SLIDER: (usize, usize, usize) = (60, 180, 20);
/// A sweep's file, and a prompt to be explained.
const MOST_BASELINES: usize = 8 << 20;
const MOST_PROMPT: usize = 256 << 10;
const MOST_LISTED: usize = 200;
const MOST_SOCKETS: usize = 64;
/// Prompts that are tokenized for strangers at a time.
const MOST_EXPLAINING: usize = 4;
/// Bytes of a message of a page's, which says nothing.
const MOST_HEARD: usize = 1 << 10;
/// Until a load or sweep that is to end is not waited for any more.
const CLOSING: Duration = Duration::from_secs(5);

impl Web {
    /// A load that somebody else runs, to look at.
    pub fn watching(shown: Arc<Shown>, about: About) -> anyhow::Result<Self> {
        Ok(Self {
            shown,
            stage: None,
            router: None,
            infrastructure: Infrastructure::new(None)?,
            book: Book::new(true),
            baselines: Baselines::new(None)?,
            about,
            read_only: false,
            mode_is_theirs: false,
            sweeps_dir: None,
            feed: Feed::default(),
            sweeps: Sweeps::default(),
            trees: Trees::default(),
            turn: Mutex::default(),
            explaining: Semaphore::new(MOST_EXPLAINING),
            closing: CancellationToken::new(),
            instance: format!("{:016x}", rand::random::<u64>()),
        })
    }

    /// Starts the load, if there is one to be started.
    pub async fn start(&self) -> Result<(), Problem> {
        self.begin(None).await
    }

    async fn begin(&self, concurrency: Option<usize>) -> Result<(), Problem> {
        let _turn = self.turn.lock().await;
        self.not_swept()?;
        self.stage.as_ref().ok_or_else(fixed)?.start(concurrency).await?;
        self.feed.mark("start", "start");
        Ok(())
    }

    /// No more listeners, load or sweep; a router that is swept is put back as it was.
    pub async fn close(&self) {
        self.closing.cancel();
        let over = async {
            loop {
                self.sweeps.stop_all();
                let _ = self.stage.as_ref().map(Stage::stop);
                if !self.sweeps.any_runs() && self.stage.as_ref().is_none_or(|stage| stage.is_stopped()) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = tokio::time::timeout(CLOSING, over).await;
    }

    /// Whether a sweep has engines and router to itself.
    pub fn is_swept(&self) -> bool {
        self.sweeps.on_stage().is_some()
    }

    /// Whether there is a load: a sweep's, our own, or one that others run.
    fn run(&self) -> Run {
        match &self.stage {
            Some(stage) if !self.is_swept() => stage.scene().run,
            _ if self.shown.live().is_some() => Run::Running,
            _ => Run::Stopped,
        }
    }

    /// What is wanted of it.
    fn level(&self) -> Option<Level> {
        match &self.stage {
            Some(stage) if !self.is_swept() => Some(Level::Concurrency(stage.scene().concurrency)),
            _ => self.shown.live().and_then(|live| live.control.level()),
        }
    }

    fn can(&self) -> Value {
        let (writes, staged) = (!self.read_only, self.stage.is_some());
        let fixed = self.shown.live().is_some_and(|live| live.control.is_fixed());
        json!({
            "run": writes && staged,
            "level": writes && (staged || !fixed),
            "mode": writes && staged && self.router.is_some() && !self.mode_is_theirs,
            "sweep": writes && staged,
            "explain": self.router.is_some(),
            "tree": self.router.is_some(),
        })
    }

    fn objective(&self) -> Promise {
        self.about.objective.into()
    }

    /// Wide enough for the level it began with and the one it stands at.
    fn slider(&self) -> Value {
        let first = self.stage.as_ref().map(|stage| stage.play().concurrency);
        let now = self.level().and_then(|level| match level {
            Level::Concurrency(count) => Some(count),
            Level::Rate(_) => None,
        });
        slider(first.into_iter().chain(now))
    }

    fn target(&self) -> Option<String> {
        let staged = self.stage.as_ref().map(|stage| stage.play().target.clone());
        staged.or_else(|| self.shown.live().map(|live| live.target.clone()))
    }

    /// What changes something is refused where only looking is allowed.
    fn may_write(&self) -> Result<(), Problem> {
        if self.read_only { Err(Problem::not_here("this page is to look at only")) } else { Ok(()) }
    }

    fn stage(&self) -> Result<&Arc<Stage>, Problem> {
        self.may_write()?;
        self.stage.as_ref().ok_or_else(fixed)
    }

    /// A sweep has engines and router to itself.
    fn not_swept(&self) -> Result<(), Problem> {
        match self.sweeps.on_stage() {
            Some(id) => Err(Problem::not_now(format!("sweep {id} runs, expected it to be over or stopped"))),
            None => Ok(()),
        }
    }

    fn router(&self) -> Result<&Administration, Problem> {
        self.router
            .as_ref()
            .ok_or_else(|| Problem::not_here("no router's administration is known, expected --admin-url"))
    }
}

fn fixed() -> Problem {
    Problem::not_here("this load is measured as it is, and cannot be changed")
}

fn slider(levels: impl Iterator<Item = usize>) -> Value {
    let (mut min, mut max, mut step) = SLIDER;
    for level in levels {
        // One that is not among its steps is shown as what it is.
        if level < SLIDER.0 || !(level - SLIDER.0).is_multiple_of(SLIDER.2) {
            step = 1;
        }
        (min, max) = (min.min(level), max.max(level));
    }
    json!({"min": min, "max": max, "step": step})
}

/// Serves until the handle is dropped; gives the address it has. [`Web::close`] ends what goes on by itself.
pub async fn serve(
    address: SocketAddr,
    web: Arc<Web>,
) -> anyhow::Result<(SocketAddr, AbortOnDropHandle<()>)> {
    let listener = tokio::net::TcpListener::bind(address)
        .await
        .with_context(|| format!("{address} cannot be opened, expected a free address"))?;
    let bound = listener.local_addr()?;
    let own = Router::new()
        .route("/api/feed", get(listen))
        .route("/api/run/start", post(start))
        .route("/api/run/stop", post(stop))
        .route("/api/load", post(change))
        .route("/api/mode", get(mode).post(set_mode))
        .route("/api/explain", post(explain).layer(DefaultBodyLimit::max(2 * MOST_PROMPT)))
        .route(
            "/api/baselines",
            get(baselines)
                .put(set_baselines)
                .delete(restore_baselines)
                .layer(DefaultBodyLimit::max(MOST_BASELINES)),
        )
        .route("/api/conversations", get(conversations))
        .route("/api/conversations/{id}", get(conversation))
        .route("/api/infrastructure", get(infrastructure))
        .route("/api/tree", get(tree))
        .route("/api/sweeps", get(list_sweeps).post(start_sweep))
        .route("/api/sweeps/{id}", get(sweep))
        .route("/api/sweeps/{id}/stop", post(stop_sweep))
        .route("/api/sweeps/{id}/{report}", get(sweep_report))
        .fallback_service(get(file).with_state(web.clone()))
        .with_state(web.clone());
    let mut routes = own.merge(routes(web.shown.clone())).layer(map_response(problem::in_form));
    if bound.ip().is_loopback() {
        routes = routes.layer(from_fn(own_host));
    }
    let serving = async move {
        tokio::select! {
            _ = async { axum::serve(listener, routes).await } => {}
            () = feed::tick(web) => {}
        }
    };
    Ok((bound, AbortOnDropHandle::new(tokio::spawn(serving))))
}

type Shared = State<Arc<Web>>;
type Answer<T> = Result<T, Problem>;

/// A page elsewhere whose name was made to lead here would pass for our own: here only this machine's names are right.
async fn own_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    let ours = host.is_some_and(|host| {
        let name = host.host().trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    });
    if ours {
        next.run(request).await
    } else {
        Problem::not_here("host is not this machine, expected localhost or an address").into_response()
    }
}

/// The page itself, or the plain one where there is none.
async fn file(State(web): Shared, uri: Uri, headers: HeaderMap) -> Response {
    let path = uri.path().trim_start_matches('/');
    if path.is_empty() && !assets::any() {
        return crate::live::plain(State(web.shown.clone())).await.into_response();
    }
    assets::answer(path, &headers).unwrap_or_else(|| {
        Problem::not_found(format!("{} is not here, expected / or one of /api", uri.path())).into_response()
    })
}

async fn listen(State(web): Shared, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Response {
    // A page of somebody else's may not listen through a browser that can reach this one.
    let said = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(origin) = said(ORIGIN)
        && origin.split_once("://").map(|(_, authority)| authority) != said(HOST)
    {
        return Problem::not_here(format!("origin is {origin}, expected this page's own")).into_response();
    }
    // Counted from here on.
    let messages = web.feed.subscribe();
    if web.feed.listeners() > MOST_SOCKETS {
        return Problem::too_many(format!("{MOST_SOCKETS} listen already")).into_response();
    }
    upgrade.max_message_size(MOST_HEARD).on_upgrade(move |socket| feed::listen(web, socket, messages))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    concurrency: Option<usize>,
}

async fn start(State(web): Shared, Json(start): Json<Start>) -> Answer<Json<Value>> {
    web.may_write()?;
    web.begin(start.concurrency).await?;
    Ok(Json(web.feed.state(&web)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

async fn stop(State(web): Shared, Json(Nothing {}): Json<Nothing>) -> Answer<Json<Value>> {
    web.stage()?.stop()?;
    web.feed.mark("stop", "stop");
    Ok(Json(web.feed.state(&web)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    concurrency: Option<usize>,
    rate: Option<f64>,
}

async fn change(State(web): Shared, Json(change): Json<Change>) -> Answer<Json<Value>> {
    web.may_write()?;
    let level = match (change.concurrency, change.rate) {
        (Some(count), None) => Level::Concurrency(count),
        (None, Some(rate)) => Level::Rate(rate),
        _ => return Err(Problem::wrong("expected either concurrency or rate")),
    };
    web.not_swept()?;
    let answer = match &web.stage {
        Some(stage) => {
            stage.set(level)?;
            web.feed.state(&web)
        }
        None => {
            let live = web.shown.live().ok_or_else(|| Problem::not_now("no load is running yet"))?;
            live.control.set(level).map_err(|error| Problem::wrong(&error))?;
            json!(live.status())
        }
    };
    let label = match level {
        Level::Concurrency(count) => count.to_string(),
        Level::Rate(rate) => rate.to_string(),
    };
    web.feed.mark("level", label);
    web.feed.tell_state(&web);
    Ok(Json(answer))
}

async fn mode(State(web): Shared) -> Answer<Json<Value>> {
    web.router()?.mode().await.map(Json).map_err(|error| Problem::elsewhere(&error))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewMode {
    mode: String,
    #[serde(default)]
    reset: bool,
}

/// The two modes that are compared; everything else is for the router's own administration.
async fn set_mode(State(web): Shared, Json(wanted): Json<NewMode>) -> Answer<Json<Value>> {
    web.stage()?;
    if !matches!(wanted.mode.as_str(), "kv" | "round_robin") {
        return Err(Problem::wrong(format!("mode is {}, expected kv or round_robin", wanted.mode)));
    }
    if web.mode_is_theirs {
        return Err(Problem::not_now("the mode is flipped again and again already (--flip)"));
    }
    let _turn = web.turn.lock().await;
    web.not_swept()?;
    let answer = web.router()?.set_mode(&wanted.mode, wanted.reset).await;
    let answer = answer.map_err(|error| Problem::elsewhere(&error))?;
    web.feed.switched(&web, &answer);
    if wanted.reset {
        web.feed.mark("reset", "caches");
    }
    Ok(Json(answer))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Explain {
    prompt: String,
}

async fn explain(State(web): Shared, Json(explain): Json<Explain>) -> Answer<Json<Value>> {
    let (size, prompt) = (explain.prompt.len(), explain.prompt);
    if prompt.is_empty() || size > MOST_PROMPT {
        return Err(Problem::wrong(format!("prompt has {size} bytes, expected 1 to {MOST_PROMPT}")));
    }
    let _permit = web
        .explaining
        .try_acquire()
        .map_err(|_| Problem::too_many(format!("{MOST_EXPLAINING} prompts are explained already")))?;
    web.router()?.explain(&prompt).await.map(Json).map_err(|error| Problem::elsewhere(&error))
}

async fn baselines(State(web): Shared) -> Json<Table> {
    Json(web.baselines.table())
}

async fn set_baselines(State(web): Shared, text: String) -> Answer<Json<Table>> {
    web.may_write()?;
    // Some megabytes to be parsed.
    let replaced = tokio::task::spawn_blocking(move || web.baselines.replace(&text)).await;
    replaced.map_err(Problem::broken)?.map(Json).map_err(|error| Problem::wrong(&error))
}

async fn restore_baselines(State(web): Shared) -> Answer<Json<Table>> {
    web.may_write()?;
    Ok(Json(web.baselines.restore()))
}

#[derive(Deserialize)]
struct Limit {
    limit: Option<usize>,
}

async fn conversations(State(web): Shared, Query(Limit { limit }): Query<Limit>) -> Json<Listing> {
    Json(web.book.list(limit.unwrap_or(MOST_LISTED).min(MOST_LISTED)))
}

async fn conversation(State(web): Shared, Path(id): Path<u64>) -> Answer<Json<Conversation>> {
    let found = web.book.read(id);
    found.map(Json).ok_or_else(|| Problem::not_found(format!("conversation {id} is not known, or forgotten")))
}

async fn infrastructure(State(web): Shared) -> impl IntoResponse {
    let cards = web.infrastructure.look(web.router.as_ref()).await;
    Json(serde_json::to_value(&*cards).unwrap_or_default())
}

async fn tree(State(web): Shared) -> Answer<impl IntoResponse> {
    let tree = web.trees.look(web.router()?, &web.book).await.map_err(|error| Problem::elsewhere(&error))?;
    Ok(Json(serde_json::to_value(&*tree).unwrap_or_default()))
}

async fn list_sweeps(State(web): Shared) -> Json<Value> {
    Json(web.sweeps.list())
}

async fn start_sweep(State(web): Shared, Json(wanted): Json<Wanted>) -> Answer<impl IntoResponse> {
    web.stage()?;
    let _turn = web.turn.lock().await;
    let id = web.sweeps.start(&web, wanted)?;
    Ok((StatusCode::CREATED, Json(json!({"id": id}))))
}

async fn sweep(State(web): Shared, Path(id): Path<u64>) -> Answer<Json<Value>> {
    web.sweeps.read(id).map(Json)
}

async fn stop_sweep(
    State(web): Shared,
    Path(id): Path<u64>,
    Json(Nothing {}): Json<Nothing>,
) -> Answer<Json<Value>> {
    web.may_write()?;
    web.sweeps.stop(id)?;
    Ok(Json(json!({"id": id})))
}

async fn sweep_report(State(web): Shared, Path((id, name)): Path<(u64, String)>) -> Answer<Response> {
    let (kind, text) = web.sweeps.report(id, &name)?;
    let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, "txt"));
    let stem = stem.replace("report", "sweep");
    let kept = format!("attachment; filename=\"kvlane-{stem}-{id}.{ending}\"");
    Ok(([(CONTENT_TYPE, kind.to_owned()), (CONTENT_DISPOSITION, kept)], text).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slider_reaches_every_level_it_may_stand_at() {
        for (levels, expected) in [
            (vec![60, 120], (60, 180, 20)),
            (vec![8, 60], (8, 180, 1)),
            (vec![70], (60, 180, 1)),
            (vec![190], (60, 190, 1)),
            (vec![200], (60, 200, 20)),
        ] {
            let (min, max, step) = expected;
            assert_eq!(slider(levels.into_iter()), json!({"min": min, "max": max, "step": step}));
        }
    }
}

//! The page and what stands behind it: looking at a load, and where it may be, starting, stopping and changing it.

mod administration;
mod assets;
mod baselines;
mod feed;
mod gauges;
mod history;
mod infrastructure;
mod problem;
mod stage;
mod sweeps;
mod tree;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

pub use self::administration::Administration;
pub use self::baselines::Baselines;
use self::baselines::{Promise, Table};
use self::feed::Feed;
pub use self::infrastructure::Infrastructure;
use self::problem::Problem;
pub use self::stage::{MakeLoad, Run, Scene, Stage};
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
    feed: Feed,
    sweeps: Sweeps,
    trees: Trees,
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
            feed: Feed::default(),
            sweeps: Sweeps::default(),
            trees: Trees::default(),
            instance: format!("{:016x}", rand::random::<u64>()),
        })
    }

    /// Starts the load, if there is one to be started.
    pub async fn start(&self) -> anyhow::Result<()> {
        let stage = self.stage.as_ref().context("there is no load to be started")?;
        stage.start(None).await.map_err(|problem| anyhow::anyhow!("{problem:?}"))
    }

    fn can(&self) -> Value {
        let writes = !self.read_only;
        let fixed = self.shown.live().is_some_and(|live| live.control.is_fixed());
        json!({
            "run": writes && self.stage.is_some(),
            "level": writes && !fixed,
            "mode": writes && self.router.is_some(),
            "sweep": writes,
            "explain": self.router.is_some(),
            "tree": self.router.is_some(),
        })
    }

    fn objective(&self) -> Promise {
        self.about.objective.into()
    }

    /// Wide enough for the level it stands at.
    fn slider(&self) -> Value {
        let (mut min, mut max, step) = SLIDER;
        let level = match &self.stage {
            Some(stage) => Some(stage.scene().level),
            None => self.shown.live().and_then(|live| live.control.level()),
        };
        if let Some(Level::Concurrency(count)) = level {
            (min, max) = (min.min(count), max.max(count));
        }
        json!({"min": min, "max": max, "step": if min == SLIDER.0 { step } else { 1 }})
    }

    fn target(&self) -> Option<String> {
        self.shown.live().map(|live| live.target.clone())
    }

    /// What changes something is refused where only looking is allowed.
    fn may_write(&self) -> Result<(), Problem> {
        if self.read_only { Err(Problem::not_here("this page is to look at only")) } else { Ok(()) }
    }

    fn stage(&self) -> Result<&Arc<Stage>, Problem> {
        self.may_write()?;
        self.stage
            .as_ref()
            .ok_or_else(|| Problem::not_here("this load is measured as it is, and cannot be changed"))
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

/// Serves until the handle is dropped; gives the address it has.
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
        .fallback(file)
        .with_state(web.clone());
    let routes = own.merge(routes(web.shown.clone()));
    let serving = async move {
        // It ends with the process.
        tokio::select! {
            _ = async { axum::serve(listener, routes).await } => {}
            () = feed::tick(web) => {}
        }
    };
    Ok((bound, AbortOnDropHandle::new(tokio::spawn(serving))))
}

type Shared = State<Arc<Web>>;
type Answer<T> = Result<T, Problem>;

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
    if web.feed.listeners() >= MOST_SOCKETS {
        return Problem::not_now(format!("{MOST_SOCKETS} listen already")).into_response();
    }
    upgrade.on_upgrade(move |socket| feed::listen(web, socket))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    concurrency: Option<usize>,
}

async fn start(State(web): Shared, Json(start): Json<Start>) -> Answer<Json<Value>> {
    web.not_swept()?;
    web.stage()?.start(start.concurrency.map(Level::Concurrency)).await?;
    web.feed.mark("start", "start");
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
        _ => return Err(Problem::wrong(&anyhow::anyhow!("expected either concurrency or rate"))),
    };
    match &web.stage {
        Some(stage) => stage.set(level)?,
        None => {
            let live = web.shown.live().ok_or_else(|| Problem::not_now("no load is running yet"))?;
            live.control.set(level).map_err(|error| Problem::wrong(&error))?;
        }
    }
    web.feed.mark("level", level.to_string());
    web.feed.tell_state(&web);
    Ok(match web.shown.live() {
        Some(live) => Json(json!(live.status())),
        None => Json(web.feed.state(&web)),
    })
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
    web.may_write()?;
    web.not_swept()?;
    if !matches!(wanted.mode.as_str(), "kv" | "round_robin") {
        let error = anyhow::anyhow!("mode is {}, expected kv or round_robin", wanted.mode);
        return Err(Problem::wrong(&error));
    }
    let answer = web.router()?.set_mode(&wanted.mode, wanted.reset).await;
    let answer = answer.map_err(|error| Problem::elsewhere(&error))?;
    web.feed.mark("mode", wanted.mode);
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
        let error = anyhow::anyhow!("prompt has {size} bytes, expected 1 to {MOST_PROMPT}");
        return Err(Problem::wrong(&error));
    }
    web.router()?.explain(&prompt).await.map(Json).map_err(|error| Problem::elsewhere(&error))
}

async fn baselines(State(web): Shared) -> Json<Table> {
    Json(web.baselines.table())
}

async fn set_baselines(State(web): Shared, text: String) -> Answer<Json<Table>> {
    web.may_write()?;
    web.baselines.replace(&text).map(Json).map_err(|error| Problem::wrong(&error))
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
    Json(web.infrastructure.look(web.router.as_ref()).await)
}

async fn tree(State(web): Shared) -> Answer<impl IntoResponse> {
    let tree = web.trees.look(web.router()?, &web.book).await;
    tree.map(Json).map_err(|error| Problem::elsewhere(&error))
}

async fn list_sweeps(State(web): Shared) -> Json<Value> {
    Json(web.sweeps.list())
}

async fn start_sweep(State(web): Shared, Json(wanted): Json<Wanted>) -> Answer<impl IntoResponse> {
    web.may_write()?;
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

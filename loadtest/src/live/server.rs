//! What a running load shows: `/metrics` for Prometheus, `/api/status` and `/api/requests` to look, `/plain` for a browser.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::RwLock;
use serde::Serialize;

use super::{Collector, Control, Level, TurnRecord, exposition};
use crate::results::{LevelFigures, shown};

/// A load that can be looked at.
#[derive(Debug)]
pub struct Live {
    pub collector: Arc<Collector>,
    pub control: Control,
    /// What it is aimed at.
    pub target: String,
}

/// How it goes.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub target: String,
    pub level: Option<Level>,
    pub active_conversations: usize,
    /// All live figures are of the last 60 s.
    pub last_minute: LevelFigures,
    /// Since counting began.
    pub requests: u64,
    pub errors: u64,
}

impl Live {
    pub fn status(&self) -> Status {
        let (requests, errors) = self.collector.counted();
        Status {
            target: self.target.clone(),
            level: self.control.level(),
            active_conversations: self.collector.active(),
            last_minute: self.collector.live(),
            requests,
            errors,
        }
    }
}

/// The load that is looked at, which changes in the course of a sweep.
#[derive(Debug, Default)]
pub struct Shown(RwLock<Option<Arc<Live>>>);

impl Shown {
    pub fn show(&self, live: Arc<Live>) {
        *self.0.write() = Some(live);
    }

    pub fn live(&self) -> Option<Arc<Live>> {
        self.0.read().clone()
    }

    fn now(&self) -> Result<Arc<Live>, (StatusCode, &'static str)> {
        self.live().ok_or((StatusCode::SERVICE_UNAVAILABLE, "no load is running yet\n"))
    }
}

/// Where it is looked at.
pub(crate) fn routes(shown: Arc<Shown>) -> Router {
    Router::new()
        .route("/plain", get(plain))
        .route("/metrics", get(metrics))
        .route("/api/status", get(status))
        .route("/api/requests", get(requests))
        .with_state(shown)
}

type Answer<T> = Result<T, (StatusCode, &'static str)>;

async fn status(State(shown): State<Arc<Shown>>) -> Answer<Json<Status>> {
    Ok(Json(shown.now()?.status()))
}

async fn requests(State(shown): State<Arc<Shown>>) -> Answer<Json<Vec<TurnRecord>>> {
    Ok(Json(shown.now()?.collector.latest()))
}

/// Of a load that is yet to come there is nothing to say, which is no failure: who scrapes it has come to the right place.
async fn metrics(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let text = shown.live().map_or_else(String::new, |live| {
        let wanted = match live.control.level() {
            Some(Level::Concurrency(count)) => Some(count),
            _ => None,
        };
        exposition(&live.collector, wanted)
    });
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// The same figures for a browser, made anew every other second; needs no script.
pub(crate) async fn plain(State(loads): State<Arc<Shown>>) -> axum::response::Html<String> {
    let Some(status) = loads.live().map(|live| live.status()) else {
        return page("No load is running yet", "", "");
    };
    let last = status.last_minute;
    let level = status.level.map_or_else(|| "a schedule".to_owned(), |level| level.to_string());
    let rows = [
        ("Conversations going on", status.active_conversations.to_string()),
        ("TTFT p50 / p95, ms", format!("{} / {}", shown(last.ttft_p50_ms, 0), shown(last.ttft_p95_ms, 0))),
        ("ITL p50 / p95, ms", format!("{} / {}", shown(last.itl_p50_ms, 1), shown(last.itl_p95_ms, 1))),
        ("Latency p50 / p95, s", format!("{} / {}", shown(last.e2e_p50_s, 1), shown(last.e2e_p95_s, 1))),
        ("Output tokens a second", shown(last.tops, 1)),
        ("Requests a second", shown(last.rps, 2)),
        ("Cached prompt tokens, %", shown(last.hit_pct, 1)),
        ("Failed, %", shown(last.error_pct, 1)),
    ];
    let rows: String = rows.iter().map(|(name, value)| format!("<tr><th>{name}<td>{value}")).collect();
    let target = status.target.replace('&', "&amp;").replace('<', "&lt;");
    page(&level, &format!("at {target}; the last 60 s"), &rows)
}

fn page(heading: &str, about: &str, rows: &str) -> axum::response::Html<String> {
    axum::response::Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content=2><title>Load</title>\
         <style>:root{{color-scheme:light dark}}body{{font:16px system-ui;margin:2rem}}th{{text-align:left;padding-right:2rem;\
         font-weight:normal}}td{{font-variant-numeric:tabular-nums}}</style><h1>{heading}</h1><p>{about}</p>\
         <table>{rows}</table><p><a href=/metrics>metrics</a> <a href=/api/requests>latest requests</a>\
         <p>This is the plain page. <code>make page</code> and another build put the full one in its place."
    ))
}

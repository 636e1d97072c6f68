//! How an endpoint is brought into a mode: our router is told, anything else by a command of the user's.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::client::Endpoint;
use crate::http::Admin;

#[derive(Clone, Debug)]
pub enum Switch {
    /// It is what it is.
    Nothing,
    /// Our router, at the address of its administration. Caches are emptied. It is put back into the mode it had.
    Router { admin: Admin, before: Arc<Mutex<Option<Value>>> },
    /// A command run by a shell, with MODE set; then it is waited for until the endpoint answers.
    Command { command: String, endpoint: Box<Endpoint> },
}

/// Until an endpoint is there again after a switch.
const READY: Duration = Duration::from_secs(900);
const PATIENCE: Duration = Duration::from_secs(30);

impl Switch {
    pub fn router(admin: impl Into<Admin>) -> Self {
        Self::Router { admin: admin.into(), before: Arc::default() }
    }

    /// What to tell our router for each mode.
    const MODES: [(&'static str, &'static str, Option<&'static str>); 8] = [
        ("round_robin", "round_robin", None),
        ("random", "random", None),
        ("least_loaded", "least_loaded", None),
        ("power_of_two", "power_of_two", None),
        ("session", "session", None),
        ("dynamo", "kv", Some("dynamo")),
        ("kvlane", "kv", Some("kvlane")),
        ("kvlane_session", "kv", Some("kvlane")),
    ];

    /// Whether requests name their conversation in this mode.
    pub fn names_session(mode: &str) -> bool {
        matches!(mode, "session" | "kvlane_session")
    }

    /// Whether our router expects anything of caches in this mode.
    pub(super) fn places_by_cache(mode: &str) -> bool {
        Self::MODES.iter().any(|(name, _, policy)| *name == mode && policy.is_some())
    }

    /// Refuses what our router does not know, before anything is measured.
    pub fn check(&self, modes: &[String]) -> anyhow::Result<()> {
        let Self::Router { .. } = self else { return Ok(()) };
        for mode in modes {
            let known = Self::MODES.map(|(name, ..)| name);
            ensure!(known.contains(&mode.as_str()), "mode is {mode}, expected some of {}", known.join(", "));
        }
        Ok(())
    }

    /// Brings it about; what is worth telling about it.
    pub async fn to(&self, mode: &str, given: bool) -> anyhow::Result<Vec<String>> {
        match self {
            _ if !given => Ok(Vec::new()),
            Self::Nothing => bail!("nobody switches to mode {mode}, expected --admin-url or --switch"),
            Self::Router { admin, before } => {
                if before.lock().is_none() {
                    let mode = admin
                        .http(PATIENCE)?
                        .get(&format!("{}/admin/mode", admin.url), 1 << 16)
                        .await
                        .context("the router's mode")?;
                    *before.lock() = Some(serde_json::from_slice(&mode).context("the router's mode")?);
                }
                router(admin, mode).await
            }
            Self::Command { command, endpoint } => run(command, endpoint, mode).await,
        }
    }

    /// Puts our router back as it was, as far as it can be told.
    pub async fn back(&self) -> anyhow::Result<()> {
        let Self::Router { admin, before } = self else { return Ok(()) };
        let Some(before) = before.lock().take() else { return Ok(()) };
        let told = json!({
            "mode": before["mode"], "policy": before["policy"], "overlap_weight": before["overlap_weight"],
            "temperature": before["temperature"],
        });
        admin
            .http(PATIENCE)?
            .post(&format!("{}/admin/mode", admin.url), &told)
            .await
            .context("the router's mode")?;
        Ok(())
    }
}

async fn router(admin: &Admin, mode: &str) -> anyhow::Result<Vec<String>> {
    let (http, admin) = (admin.http(PATIENCE)?, &admin.url);
    let Some((_, name, policy)) = Switch::MODES.iter().find(|(known, ..)| *known == mode) else {
        bail!("mode is {mode}, expected one that the router has");
    };
    let mut asked = json!({"mode": name, "reset": true});
    if let Some(policy) = policy {
        asked["policy"] = json!(policy);
    }
    let answer = http.post(&format!("{admin}/admin/mode"), &asked).await.context("the router's mode")?;
    let answer: Value = serde_json::from_slice(&answer).context("the router's mode")?;
    let emptied = answer["reset"].as_object().into_iter().flatten();
    let notes = emptied
        .filter_map(|(worker, said)| {
            said.as_str().filter(|said| *said != "emptied").map(|said| (worker, said))
        })
        .map(|(worker, said)| format!("the cache of {worker} was {said}"))
        .collect();
    let begin = tokio::time::Instant::now();
    while http.get(&format!("{admin}/ready"), 1 << 16).await.is_err() {
        ensure!(begin.elapsed() < READY, "the router is not ready {READY:?} after its mode was set");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(notes)
}

async fn run(command: &str, endpoint: &Endpoint, mode: &str) -> anyhow::Result<Vec<String>> {
    // To a file: something it leaves running would keep a pipe open for ever.
    let said = std::env::temp_dir().join(format!("kvlane-switch-{}.log", std::process::id()));
    let log = std::fs::File::create(&said).with_context(|| said.display().to_string())?;
    let mut child = tokio::process::Command::new("sh")
        .args(["-c", command])
        .env("MODE", mode)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("--switch {command:?}"))?;
    let late = || format!("--switch {command:?} with MODE={mode} did not end within {READY:?}");
    let status = tokio::time::timeout(READY, child.wait()).await.with_context(late)??;
    let text = std::fs::read_to_string(&said).unwrap_or_default();
    let tail: String = text.chars().skip(text.chars().count().saturating_sub(500)).collect();
    let _ = std::fs::remove_file(&said);
    ensure!(status.success(), "--switch {command:?} with MODE={mode} ended with {status}: {}", tail.trim());
    let begin = tokio::time::Instant::now();
    while let Err(error) = endpoint.first_model().await {
        ensure!(begin.elapsed() < READY, "not ready {READY:?} after --switch: {error:#}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_modes_are_refused_before_anything_is_measured() {
        let router = Switch::router("http://127.0.0.1:1/");
        assert!(router.check(&["round_robin".to_owned(), "kvlane".to_owned()]).is_ok());
        let refused = router.check(&["warm".to_owned()]).unwrap_err().to_string();
        assert!(refused.starts_with("mode is warm, expected some of round_robin, "), "{refused}");
        assert!(Switch::Nothing.check(&["anything".to_owned()]).is_ok());
        assert!(Switch::names_session("session") && !Switch::names_session("kvlane"));
    }
}

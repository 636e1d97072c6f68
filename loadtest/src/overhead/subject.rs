//! A router under measurement: a process of its own.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::{Child, Command};
use tokio::time::Instant;

use super::engine::Engines;

/// Who is measured.
#[derive(Clone, Debug)]
pub struct Subject {
    pub name: String,
    pub how: How,
}

#[derive(Clone, Debug)]
pub enum How {
    /// A `kvlane` program, and more flags for it.
    Kvlane { program: PathBuf, flags: Vec<String> },
    /// A shell command that becomes the router; it is told where everything is by variables.
    Command(String),
    /// Something that runs already, and its process.
    Url { address: SocketAddr, host: String, pid: Option<u32> },
    /// The first engine itself: no router at all.
    Nothing,
}

impl Subject {
    /// `NAME=URL[,PID]`, `NAME=PATH/TO/kvlane [FLAGS]`, `NAME=sh:COMMAND`, or `none`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected =
            || format!("NAME=URL[,PID], NAME=PROGRAM [FLAGS], NAME=sh:COMMAND or none instead of {text:?}");
        if text == "none" {
            return Ok(Self { name: "no router".to_owned(), how: How::Nothing });
        }
        let (name, what) = text.split_once('=').ok_or_else(expected)?;
        let how = if let Some(url) = what.strip_prefix("http://") {
            let (host, pid) = match url.split_once(',') {
                Some((host, pid)) => (host, Some(pid.parse().map_err(|_| expected())?)),
                None => (url, None),
            };
            let host = host.trim_end_matches('/').to_owned();
            let address = host.replace("localhost", "127.0.0.1").parse();
            How::Url { address: address.map_err(|_| expected())?, host, pid }
        } else if let Some(command) = what.strip_prefix("sh:") {
            How::Command(command.to_owned())
        } else {
            let mut words = what.split_whitespace();
            let program = PathBuf::from(words.next().ok_or_else(expected)?);
            How::Kvlane { program, flags: words.map(str::to_owned).collect() }
        };
        Ok(Self { name: name.to_owned(), how })
    }
}

/// Where a subject runs, and what it is told.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The core it has, when there are several.
    pub core: Option<usize>,
    /// The one that engines and client have.
    pub own_core: usize,
    pub model_name: String,
    pub model_dir: PathBuf,
    pub block: usize,
    pub workers: u32,
    pub pace: Duration,
    /// Where its output goes.
    pub log: PathBuf,
}

/// A subject that answers.
#[derive(Debug)]
pub struct Running {
    pub name: String,
    pub address: SocketAddr,
    pub host: String,
    pid: Option<u32>,
    child: Option<Child>,
}

/// How long a subject may take to be there.
const READY: Duration = Duration::from_secs(120);
const MODELS_BYTES: usize = 1 << 20;

impl Running {
    pub async fn start(subject: &Subject, stage: &Stage, engines: &Engines) -> anyhow::Result<Self> {
        let name = subject.name.clone();
        let command = match &subject.how {
            How::Nothing => {
                let address = engines.workers.first().context("no engine")?.http;
                return Ok(Self { name, address, host: address.to_string(), pid: None, child: None });
            }
            How::Url { address, host, pid } => {
                return Ok(Self { name, address: *address, host: host.clone(), pid: *pid, child: None });
            }
            How::Kvlane { program, flags } => {
                let mut words = vec![program.display().to_string()];
                words.extend(["--port", "$PORT", "--host", "127.0.0.1", "--model-path"].map(str::to_owned));
                words.push(stage.model_dir.display().to_string());
                words.extend(["--admin-port", "0"].map(str::to_owned));
                for worker in &engines.workers {
                    let (events, replay) = (worker.events, worker.replay);
                    let spec =
                        format!("url=http://{},events=tcp://{events},replay=tcp://{replay}", worker.http);
                    words.extend(["--worker".to_owned(), spec]);
                }
                words.extend(flags.iter().cloned());
                format!("exec {}", words.join(" "))
            }
            // The process that is measured must be the router and not a shell around it.
            How::Command(command) => format!("exec {command}"),
        };
        let port = free_port()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let workers: Vec<String> =
            engines.workers.iter().map(|worker| format!("http://{}", worker.http)).collect();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&stage.log);
        let log = log.with_context(|| stage.log.display().to_string())?;
        let mut shell = match stage.core {
            Some(core) => {
                let mut shell = Command::new("taskset");
                shell.args(["-c", &core.to_string(), "sh"]);
                shell
            }
            None => Command::new("sh"),
        };
        let child = shell
            .arg("-c")
            .arg(&command)
            .env("PORT", port.to_string())
            .env("WORKERS", workers.join(" "))
            .env("WORKER_COUNT", workers.len().to_string())
            .env("MODEL_NAME", &stage.model_name)
            .env("MODEL_DIR", &stage.model_dir)
            .env("BLOCK_SIZE", stage.block.to_string())
            .env("PACE_MS", stage.pace.as_millis().to_string())
            .env("ENGINE_CORE", stage.own_core.to_string())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        let pid = child.id();
        let mut running = Self { name, address, host: address.to_string(), pid, child: Some(child) };
        running.wait(stage).await?;
        Ok(running)
    }

    /// Until it has the model.
    async fn wait(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let http = crate::http::Http::new(Duration::from_secs(2))?;
        let (models, begun) = (format!("http://{}/v1/models", self.address), Instant::now());
        let quoted = format!("\"{}\"", stage.model_name);
        loop {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                bail!("{} ended with {status}; see {}", self.name, stage.log.display());
            }
            let listed = http.get(&models, MODELS_BYTES).await;
            if listed.is_ok_and(|listed| String::from_utf8_lossy(&listed).contains(&quoted)) {
                // Its workers may join one by one.
                tokio::time::sleep(Duration::from_secs(2) + Duration::from_millis(50) * stage.workers).await;
                return Ok(());
            }
            ensure!(
                begun.elapsed() < READY,
                "{} does not serve {} after {} s; see {}",
                self.name,
                stage.model_name,
                READY.as_secs(),
                stage.log.display()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Processor time of its process so far, in seconds; none where it is not known which that is.
    pub fn cpu_s(&self) -> Option<f64> {
        kvlane_engine_adapters::process::cpu_seconds(&self.pid?.to_string())
    }

    /// Memory it has, in megabytes.
    pub fn resident_mb(&self) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0 / 1e6)
    }

    pub async fn stop(mut self) {
        let Some(mut child) = self.child.take() else { return };
        if let Some(pid) = self.pid {
            // Whatever it started besides itself is of its group.
            let group = format!("-{pid}");
            let _ = Command::new("kill").args(["-TERM", "--", &group]).status().await;
            let _ = tokio::time::timeout(Duration::from_secs(3), child.wait()).await;
            let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status().await;
        }
        let _ = child.kill().await;
    }
}

/// However a measurement ends, nothing of it stays.
impl Drop for Running {
    fn drop(&mut self) {
        if let (Some(_), Some(pid)) = (&self.child, self.pid) {
            let group = format!("-{pid}");
            let _ = std::process::Command::new("kill")
                .args(["-KILL", "--", &group])
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Puts this process, engines and client in it, on one core.
pub async fn pin_self(core: usize) -> anyhow::Result<()> {
    let pid = std::process::id().to_string();
    let status = Command::new("taskset")
        .args(["-acp", &core.to_string(), &pid])
        .stdout(Stdio::null())
        .status()
        .await
        .context("taskset (Debian's util-linux)")?;
    ensure!(status.success(), "taskset: core {core} is not there");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_read() {
        let how = |text: &str| Subject::parse(text).map(|subject| subject.how);
        assert!(matches!(how("a=http://localhost:80,7"), Ok(How::Url { pid: Some(7), .. })));
        assert!(matches!(how("a=http://127.0.0.1:80"), Ok(How::Url { pid: None, .. })));
        assert!(matches!(how("b=./kvlane --threads 1"), Ok(How::Kvlane { flags, .. }) if flags.len() == 2));
        assert!(matches!(how("c=sh:exec x"), Ok(How::Command(_))));
        assert!(matches!(how("none"), Ok(How::Nothing)));
        for wrong in ["", "x", "a=", "a=http://nowhere", "a=http://localhost:80,x"] {
            assert!(how(wrong).is_err_and(|error| error.contains("NAME=URL")), "{wrong}");
        }
    }
}

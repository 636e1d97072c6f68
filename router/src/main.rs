//! `kvlane`: settings, logs, and running until a signal.

#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, reason = "a command line program")]

use std::process::ExitCode;

use kvlane_engine_adapters::process;
use kvlane_router::app::App;
use kvlane_router::cli::{self, Task};
use kvlane_router::config::{Config, LogFormat, Settings, Sources};
use kvlane_router::{probe, threads};

/// Chosen by measurement: a quarter less processor time a request than the system's, and half the memory.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Wrong settings.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    let loaded = cli::read(&matches, Sources::environment())
        .and_then(|(task, sources)| Ok((task, Config::load(&sources)?, sources)));
    let (task, (config, settings), sources) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("kvlane: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let mut out = std::io::stdout().lock();
    let printed = match task {
        Task::Run => return run(config, &settings, &sources),
        Task::PrintConfig => cli::print_config(&settings, &mut out),
        Task::PrintDefaults => cli::print_defaults(&mut out),
        Task::PrintReference => cli::print_reference(&mut out),
        Task::Health(url) => {
            let url = url.unwrap_or_else(|| probe::own_address(&config.server));
            let asked = probe::probe(&url);
            if let Err(error) = &asked {
                eprintln!("kvlane: {error:#}");
            }
            return if asked.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        Task::Completions(shell) => {
            clap_complete::generate(shell, &mut cli::command(), "kvlane", &mut out);
            Ok(())
        }
    };
    // Whoever reads may have read enough.
    if printed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(config: Config, settings: &Settings, sources: &Sources) -> ExitCode {
    let json = match config.log.format {
        LogFormat::Auto => None,
        LogFormat::Text => Some(false),
        LogFormat::Json => Some(true),
    };
    if let Err(error) = process::log(&config.log.level, json) {
        eprintln!(
            "kvlane: `log.level` is {:?}, expected a filter such as info or kvlane_router=debug: {error}",
            config.log.level
        );
        return ExitCode::from(USAGE);
    }
    for name in cli::strange_variables(sources) {
        tracing::warn!(name, "this variable is no setting");
    }
    let runtime = match threads::runtime(&config.server) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("kvlane: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(serve(config, settings));
    // Preparations that nobody waits for any more are not waited for.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kvlane: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: Config, settings: &Settings) -> anyhow::Result<()> {
    let mode = config.routing.mode.name();
    let nobody = config.workers.list.is_empty()
        && config.workers.file.is_none()
        && config.workers.dns.is_empty()
        && config.workers.kubernetes.is_none()
        && config.events.nats_url.is_none();
    let app = App::start(config, settings, process::since_1970()).await?;
    tracing::info!(
        mode,
        admin = app.admin_address.map(tracing::field::display),
        "kvlane on http://{}",
        app.address
    );
    if nobody {
        tracing::warn!(
            "no workers are named: --worker URL, --workers-file, --worker-dns, --worker-service or --nats-url"
        );
    }
    process::asked_to_stop().await?;
    tracing::info!("stopping: finishing what is running");
    let again = async {
        let _ = process::asked_to_stop().await;
    };
    app.drain(again).await;
    Ok(())
}

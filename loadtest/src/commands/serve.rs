//! `kvlane-load serve`: the page, for a router that is there already.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use kvlane_loadtest::arrivals::{Arrivals, Ramp};
use kvlane_loadtest::web::{Web, serve as open};

use super::load_flags::LoadFlags;
use super::page_flags::PageFlags;

#[derive(Debug, clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    load: LoadFlags,
    /// Conversations at a time once it is started
    #[arg(long, default_value_t = 60, help_heading = "Load")]
    concurrency: usize,
    /// Starts the load at once instead of at the page's Start
    #[arg(long, help_heading = "Load")]
    start: bool,
    /// Address of the page; one that others reach lets them start and stop the load, unless --read-only
    #[arg(
        long,
        env = "PAGE_LISTEN",
        default_value = "127.0.0.1:3000",
        value_name = "HOST:PORT",
        help_heading = "Page"
    )]
    listen: SocketAddr,
    #[command(flatten)]
    page: PageFlags,
}

pub(crate) fn serve(arguments: &Serve) -> anyhow::Result<ExitCode> {
    arguments.load.check()?;
    ensure!(
        arguments.load.trace.is_none(),
        "--trace is for `run`: a page keeps conversations going, and a trace has times of its own"
    );
    ensure!(
        (1..=100_000).contains(&arguments.concurrency),
        "--concurrency is {}, expected 1 to 100000",
        arguments.concurrency
    );
    ensure!(arguments.start || !arguments.page.read_only, "--read-only needs --start: nobody else could");
    super::check_open_files(&Arrivals::Closed(Ramp::flat(arguments.concurrency as f64)))?;
    let runtime = tokio::runtime::Runtime::new().context("threads")?;
    let done = runtime.block_on(async {
        let mut interrupts = super::Interrupts::new()?;
        let web = OnceCell::new();
        let done = tokio::select! {
            done = show(arguments, &web) => done,
            () = interrupts.next() => Ok(()),
        };
        if let Some(web) = web.get() {
            Web::close(web).await;
        }
        done
    });
    // What is computed for a page is not waited for.
    runtime.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

async fn show(arguments: &Serve, opened: &OnceCell<Arc<Web>>) -> anyhow::Result<()> {
    let prepared = arguments.load.clone().prepare().await?;
    let admin = arguments.load.admin()?;
    let administered = admin.is_some();
    let web = arguments.page.page(prepared, admin, arguments.concurrency, 1.0, None)?;
    let web = opened.get_or_init(|| Arc::new(web)).clone();
    let (page, server) = open(arguments.listen, web.clone()).await.context("--listen")?;
    eprintln!("the page is at http://{page}/, metrics are at http://{page}/metrics");
    if !administered {
        eprintln!(
            "without --admin-url the page cannot switch modes, explain decisions or show workers and the tree"
        );
    }
    if arguments.start {
        web.start().await?;
    }
    server.await.context("the page ended")
}

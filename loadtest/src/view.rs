//! How a run is shown: a whole screen on a terminal, one bar, or plain lines where nobody looks; and its report.

mod bars;
mod plain;
mod report;
mod tui;

use std::io::IsTerminal;
use std::sync::Arc;

use self::bars::Bars;
use self::plain::Plain;
pub use self::report::report;
use self::tui::Tui;
use crate::live::{Course, Live, Phase};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Look {
    /// A screen of figures; + and - change the load, q ends it
    Tui,
    /// One line that moves
    Bars,
    /// A line every few seconds
    Plain,
    /// Nothing until it is over
    None,
}

impl Look {
    /// What suits whoever is there.
    pub fn of_terminal() -> Self {
        if std::io::stderr().is_terminal() && std::io::stdin().is_terminal() {
            Self::Tui
        } else {
            Self::Plain
        }
    }
}

/// Shows one run. What it changed on a terminal is undone when it is dropped.
#[derive(Debug)]
pub enum View {
    Tui(Box<Tui>),
    Bars(Bars),
    Plain(Plain),
    None,
}

impl View {
    pub fn open(look: Look, live: Arc<Live>, course: Course) -> anyhow::Result<Self> {
        Ok(match look {
            Look::Tui => Self::Tui(Box::new(Tui::open(live, course)?)),
            Look::Bars => Self::Bars(Bars::open(live, course)),
            Look::Plain => Self::Plain(Plain::open(live)),
            Look::None => Self::None,
        })
    }

    /// Shows where it stands; false when whoever looks wants it to end.
    pub fn tell(&mut self, phase: Phase) -> bool {
        match self {
            Self::Tui(tui) => tui.tell(phase),
            Self::Bars(bars) => bars.tell(phase),
            Self::Plain(plain) => plain.tell(phase),
            Self::None => true,
        }
    }
}

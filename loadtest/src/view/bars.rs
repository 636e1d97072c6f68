//! One line that moves.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::plain::line;
use crate::live::{Course, Live, Phase};

#[derive(Debug)]
pub struct Bars {
    live: Arc<Live>,
    course: Course,
    bar: ProgressBar,
}

impl Bars {
    pub(super) fn open(live: Arc<Live>, course: Course) -> Self {
        let bar = ProgressBar::new(course.length().as_secs());
        // A wrong template would be a mistake of ours, and the plain style does as well.
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {wide_msg}") {
            bar.set_style(style);
        }
        Self { live, course, bar }
    }

    pub(super) fn tell(&mut self, phase: Phase) -> bool {
        let after = if let Phase::WarmingUp { .. } = phase { self.course.window } else { Duration::ZERO };
        let left = phase.left() + after;
        self.bar.set_position(self.course.length().saturating_sub(left).as_secs());
        self.bar.set_message(line(&self.live, phase));
        true
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

//! What the process itself takes. The library counts processor time in whole seconds, too coarse for a rate over a minute.

use kvlane_engine_adapters::process::cpu_seconds;
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, MetricFamily};

pub(super) struct Process(ProcessCollector);

impl Process {
    pub(super) fn new() -> Self {
        Self(ProcessCollector::for_self())
    }
}

impl Collector for Process {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = self.0.collect();
        let family = families.iter_mut().find(|family| family.name() == "process_cpu_seconds_total");
        if let (Some(family), Some(seconds)) = (family, cpu_seconds("self")) {
            let mut counter = Counter::default();
            counter.set_value(seconds);
            family.mut_metric().iter_mut().for_each(|metric| metric.set_counter(counter.clone()));
        }
        families
    }
}

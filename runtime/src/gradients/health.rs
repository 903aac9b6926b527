//! Monitoring a training whose gradients are sent late.

use super::Gradients;
use crate::health::Health;

impl Gradients {
    /// What waits on this worker, how long, and what in that slows the training. In each seventeenth step a sample of at most
    /// 65,536 values of each group is looked at, before and after it is committed; this only adds up. It begins again with other groups and
    /// in a job that goes on from a checkpoint. Of gradients that are sparse already and of those on a device nothing is looked at, and dense
    /// methods let nothing wait.
    pub fn health(&self) -> Health {
        let groups: Vec<_> = self.exchange.groups().collect();
        let sparse = groups.iter().filter(|group| group.routine.method().collective().is_sparse());
        sparse.filter_map(|group| group.watch.as_ref()).collect()
    }
}

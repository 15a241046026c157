//! The least times at which a trainer can claim the steps of a run, under a staleness bound.
//!
//! A trainer claims one step after the other, trains for a while, and then announces the next version. With a
//! staleness bound of `S`, step `s` (from 1) is claimed at version `s - 1`, so its groups may begin only when
//! version `s - 1 - S` has been announced. Groups that the filter throws away obey this rule too, because a
//! scheduler does not know beforehand which groups these are. A step is claimed only when all of these hold:
//! - the trainer has ended training on the previous step;
//! - for each step `r` up to `s`, enough time has passed since `r` could begin for the fleet to do the work of
//!   the steps `r` to `s`;
//! - enough time has passed since `s` could begin for the longest sample of `s` to run alone on the fastest
//!   server.
//!
//! The bound is the earliest time at which all of these conditions hold.
//!
//! # Invariants
//! No schedule that keeps the rule beats the bound, even if it knows every length beforehand. A weight update
//! takes no time here.

use super::work::{Limit, Work};
use super::{FleetModel, Reference};

impl Reference {
    /// The least seconds from the start of the run to the claim of each step, if training takes `training_s`
    /// seconds a step and no group may be more than `staleness` versions old. `fleet` is the fleet of this
    /// reference.
    pub fn claims_s(&self, fleet: &FleetModel, staleness: u64, training_s: f64) -> Vec<f64> {
        let lag = usize::try_from(staleness).unwrap_or(usize::MAX).saturating_add(1);
        let best_speed = fleet.speeds.iter().copied().fold(0.0, f64::max);
        let fleet_speed: f64 = fleet.speeds.iter().sum();
        let mut begins: Vec<f64> = Vec::new();
        let mut claims: Vec<f64> = Vec::new();
        for (step, own) in self.work.iter().enumerate() {
            let announced = step.checked_sub(lag).and_then(|before| claims.get(before));
            begins.push(announced.map_or(0.0, |claim| claim + training_s));
            let free = claims.last().map_or(0.0, |claim| claim + training_s);
            let mut least = free.max(begins[step] + own.longest_s() / best_speed);
            let mut work = Work::default();
            for (first, begin) in begins.iter().enumerate().rev() {
                work.join(&self.work[first]);
                let seconds = work.seconds(&fleet.server, fleet.permits, Limit::Cache);
                least = least.max(begin + seconds / fleet_speed);
            }
            claims.push(least);
        }
        claims
    }
}

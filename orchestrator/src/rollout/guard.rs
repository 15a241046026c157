//! The guard that acts when early stopping prefers short answers.
//!
//! The [meter](rolldock_dispatch::bias) compares the mean length of accepted responses with the mean length
//! of all dispatched responses. The guard acts when accepted responses are shorter by more than a set share,
//! and the difference is significant: the whole interval of two standard errors must be beyond the share. The
//! run then changes to a rule that does not depend on length, and reports the change. The guard does nothing
//! while the bias is not known.

use rolldock_dispatch::bias::Bias;
use serde::{Deserialize, Serialize};

use crate::rollout::EarlyStop;

/// The settings of the guard: when it acts, and how.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BiasGuard {
    /// The share by which accepted responses may be shorter than dispatched responses.
    pub share: f64,
    /// The action if they are shorter by more than that.
    #[serde(default)]
    pub action: GuardAction,
}

/// The action of the guard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// Accept groups in dispatch order from now on.
    #[default]
    Fifo,
    /// Await every group of a step until the bias is no longer seen.
    LongRound,
}

/// The changes that the guard has made so far.
#[derive(Debug, Default)]
pub(crate) struct GuardState {
    in_long_round: bool,
    has_switched: bool,
}

impl GuardState {
    /// The state of a guard that set `rule` in an earlier process.
    pub(crate) fn after_rule(guard: &BiasGuard, configured: EarlyStop, rule: EarlyStop) -> Self {
        let has_changed = rule != configured;
        Self {
            in_long_round: has_changed && guard.action == GuardAction::LongRound && rule == EarlyStop::Off,
            has_switched: has_changed && guard.action == GuardAction::Fifo && rule == EarlyStop::Fifo,
        }
    }

    /// Whether the guard has replaced the rule of the recipe.
    pub(crate) fn has_changed_the_rule(&self) -> bool {
        self.in_long_round || self.has_switched
    }
}

impl BiasGuard {
    /// Returns the rule of the next step if it has to change. This is called after each step. `configured` is
    /// the rule of the recipe.
    pub(crate) fn after_step(
        &self,
        state: &mut GuardState,
        configured: EarlyStop,
        length_bias: Option<Bias>,
    ) -> Option<EarlyStop> {
        if state.has_switched {
            return None;
        }
        let is_biased = length_bias.is_some_and(|bias| bias.interval().1 < 1.0 - self.share);
        match (is_biased, self.action) {
            (true, GuardAction::Fifo) if configured != EarlyStop::Fifo => {
                state.has_switched = true;
                Some(EarlyStop::Fifo)
            }
            (true, GuardAction::LongRound) => {
                state.in_long_round = true;
                Some(EarlyStop::Off)
            }
            _ if state.in_long_round => {
                state.in_long_round = false;
                Some(configured)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    const BIASED: Option<Bias> = Some(Bias { accepted: 85.0, dispatched: 100.0, standard_error: 0.02 });
    const FAIR: Option<Bias> = Some(Bias { accepted: 95.0, dispatched: 100.0, standard_error: 0.0 });
    /// Below the share, but within two standard errors of it.
    const UNSURE: Option<Bias> = Some(Bias { accepted: 85.0, dispatched: 100.0, standard_error: 0.03 });

    #[test]
    fn a_biased_run_goes_on_in_dispatch_order_for_good() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::Fifo };
        let mut state = GuardState::default();
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, FAIR), None);
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, None), None);
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, UNSURE), None);
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, BIASED), Some(EarlyStop::Fifo));
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, BIASED), None);
    }

    #[test]
    fn a_long_round_lasts_until_the_bias_has_gone() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::LongRound };
        let mut state = GuardState::default();
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, BIASED), Some(EarlyStop::Off));
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, BIASED), Some(EarlyStop::Off));
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, FAIR), Some(EarlyStop::First));
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, FAIR), None);
    }

    #[test]
    fn the_next_process_goes_on_with_the_rule_that_was_set() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::Fifo };
        let rule = EarlyStop::named(&EarlyStop::Fifo.to_string()).unwrap();
        let mut state = GuardState::after_rule(&guard, EarlyStop::First, rule);
        assert!(state.has_changed_the_rule());
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, BIASED), None, "it has switched for good");

        let guard = BiasGuard { share: 0.1, action: GuardAction::LongRound };
        let rule = EarlyStop::named("off").unwrap();
        let mut state = GuardState::after_rule(&guard, EarlyStop::First, rule);
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, FAIR), Some(EarlyStop::First));
        let state = GuardState::after_rule(&guard, EarlyStop::First, EarlyStop::First);
        assert!(!state.has_changed_the_rule(), "the long round was over");
        assert_eq!(EarlyStop::named("fairest"), None);
    }
}

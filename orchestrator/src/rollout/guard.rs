//! The guard that acts when early stopping prefers short answers.
//!
//! The [meter](rolldock_dispatch::bias) compares the mean length of accepted responses with the mean length
//! of all dispatched responses. The guard acts when accepted responses are shorter by more than a set share,
//! and the difference is significant: the whole interval of two standard errors must be beyond the share. The
//! run then changes to a rule that does not depend on length, and reports the change. The guard does nothing
//! while the bias is not known.

use rolldock_dispatch::bias::Bias;
use rolldock_dispatch::modes::{BiasGuard, EarlyStop, GuardAction};

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

    /// Returns the rule of the next step if it has to change. This is called after each step. `configured` is
    /// the rule of the recipe.
    pub(crate) fn after_step(
        &mut self,
        guard: &BiasGuard,
        configured: EarlyStop,
        length_bias: Option<Bias>,
    ) -> Option<EarlyStop> {
        if self.has_switched {
            return None;
        }
        let is_biased = length_bias.is_some_and(|bias| bias.interval().1 < 1.0 - guard.share);
        match (is_biased, guard.action) {
            (true, GuardAction::Fifo) if configured != EarlyStop::Fifo => {
                self.has_switched = true;
                Some(EarlyStop::Fifo)
            }
            (true, GuardAction::LongRound) => {
                self.in_long_round = true;
                Some(EarlyStop::Off)
            }
            _ if self.in_long_round => {
                self.in_long_round = false;
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
    /// The ratio is below the threshold, but less than two standard errors away from it.
    const UNSURE: Option<Bias> = Some(Bias { accepted: 85.0, dispatched: 100.0, standard_error: 0.03 });

    #[test]
    fn a_biased_run_goes_on_in_dispatch_order_for_good() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::Fifo };
        let mut state = GuardState::default();
        assert_eq!(state.after_step(&guard, EarlyStop::First, FAIR), None);
        assert_eq!(state.after_step(&guard, EarlyStop::First, None), None);
        assert_eq!(state.after_step(&guard, EarlyStop::First, UNSURE), None);
        assert_eq!(state.after_step(&guard, EarlyStop::First, BIASED), Some(EarlyStop::Fifo));
        assert_eq!(state.after_step(&guard, EarlyStop::First, BIASED), None);
    }

    #[test]
    fn a_long_round_lasts_until_the_bias_has_gone() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::LongRound };
        let mut state = GuardState::default();
        assert_eq!(state.after_step(&guard, EarlyStop::First, BIASED), Some(EarlyStop::Off));
        assert_eq!(state.after_step(&guard, EarlyStop::First, BIASED), Some(EarlyStop::Off));
        assert_eq!(state.after_step(&guard, EarlyStop::First, FAIR), Some(EarlyStop::First));
        assert_eq!(state.after_step(&guard, EarlyStop::First, FAIR), None);
    }

    #[test]
    fn the_next_process_goes_on_with_the_rule_that_was_set() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::Fifo };
        let rule = EarlyStop::named(&EarlyStop::Fifo.to_string()).unwrap();
        let mut state = GuardState::after_rule(&guard, EarlyStop::First, rule);
        assert!(state.has_changed_the_rule());
        assert_eq!(state.after_step(&guard, EarlyStop::First, BIASED), None, "it has switched for good");

        let guard = BiasGuard { share: 0.1, action: GuardAction::LongRound };
        let rule = EarlyStop::named("off").unwrap();
        let mut state = GuardState::after_rule(&guard, EarlyStop::First, rule);
        assert_eq!(state.after_step(&guard, EarlyStop::First, FAIR), Some(EarlyStop::First));
        let state = GuardState::after_rule(&guard, EarlyStop::First, EarlyStop::First);
        assert!(!state.has_changed_the_rule(), "the long round was over");
    }
}

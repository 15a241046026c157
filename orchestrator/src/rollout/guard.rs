//! What the run does when early stopping is seen to prefer short answers.
//!
//! The [meter](crate::rollout::bias) compares the mean length of accepted responses with that of all dispatched
//! responses. When the first is below the second by more than a set share, and this is no accident (the
//! interval of two standard errors lies below the share too), the run changes to a rule that does not depend
//! on length, and reports the change. It does nothing while the bias is not known.

use serde::{Deserialize, Serialize};

use crate::rollout::{Bias, EarlyStop};

/// When the guard acts, and how.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct BiasGuard {
    /// The share by which accepted responses may be shorter than dispatched ones.
    pub share: f64,
    /// What happens if they are shorter by more.
    #[serde(default)]
    pub action: GuardAction,
}

/// What the guard does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardAction {
    /// It accepts groups in dispatch order from now on.
    #[default]
    Fifo,
    /// It awaits every group of a step until the bias has gone.
    LongRound,
}

/// What the guard has done so far.
#[derive(Debug, Default)]
pub(crate) struct GuardState {
    in_long_round: bool,
    has_switched: bool,
}

impl BiasGuard {
    /// Called after a step; returns the rule of the next step if it has to change. `configured` is the rule
    /// of the recipe.
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
}

//! What the run does when early stopping is seen to prefer short answers.
//!
//! The meter compares the mean length of accepted responses with that of all dispatched responses. When the
//! first falls below the second by more than a set share, the run changes to a rule that does not depend on
//! length, and reports the change.

use serde::{Deserialize, Serialize};

use crate::rollout::{EarlyStop, LengthBias};

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
        bias: Option<LengthBias>,
    ) -> Option<EarlyStop> {
        if state.has_switched {
            return None;
        }
        let is_biased = bias.is_some_and(|bias| bias.ratio() < 1.0 - self.share);
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

    const BIASED: Option<LengthBias> = Some(LengthBias { accepted: 85.0, dispatched: 100.0 });
    const FAIR: Option<LengthBias> = Some(LengthBias { accepted: 95.0, dispatched: 100.0 });

    #[test]
    fn a_biased_run_goes_on_in_dispatch_order_for_good() {
        let guard = BiasGuard { share: 0.1, action: GuardAction::Fifo };
        let mut state = GuardState::default();
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, FAIR), None);
        assert_eq!(guard.after_step(&mut state, EarlyStop::First, None), None);
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

//! The recipe's words that are one of a few.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
        #[serde(rename_all = "snake_case")]
        #[value(rename_all = "snake_case")]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // As the recipe has it: serde's word for the variant.
                self.serialize(f)
            }
        }
    };
}

choice!(
    /// When a step ends; see [`crate::rollout`].
    EarlyStop {
        /// At the target, whoever is first: the published recipe, biased to short answers.
        First,
        /// When the shortest prefix of dispatch order holds the target.
        #[default]
        Fifo,
        /// When everything that was sent out has ended.
        Off,
    }
);
choice!(
    /// What becomes of running groups at an early stop.
    OnStop {
        /// Thrown away.
        Discard,
        /// Their prompts go first in the next step.
        #[default]
        Requeue,
        /// Their tokens are kept and resumed.
        Carry,
    }
);
choice!(
    /// How many prompts are sent out.
    Launch {
        /// Generation batches of a fixed size.
        #[default]
        Batch,
        /// What the measured accept rate says is still needed.
        OnDemand,
    }
);
choice!(
    /// What one request asks for.
    RequestShape {
        /// One sample.
        #[default]
        Sample,
        /// All samples of a group.
        Group,
    }
);
choice!(
    /// Which server gets the next permit.
    RoutingPolicy {
        /// The smallest share of its permits out.
        LeastLoad,
        /// The less loaded of two at random.
        PowerOfTwo,
        /// The fewest expected tokens outstanding.
        LeastWork,
        /// Where the group's first sample went, else least load.
        #[default]
        GroupAffinity,
        /// Where a further sample is decoded fastest.
        Weighted,
        /// In turn.
        RoundRobin,
        /// Any.
        Random,
    }
);
choice!(
    /// How a server has to show that it lives.
    HealthProbe {
        /// It says so.
        #[default]
        Health,
        /// One that has nothing to do, or was dead, also generates a token.
        Generate,
    }
);
choice!(
    /// How the embedded fleet is reached.
    Transport {
        /// A function call.
        #[default]
        InProcess,
        /// Loopback sockets.
        Http,
    }
);
choice!(
    /// What an acknowledged put survives.
    Durability {
        /// Nothing.
        None,
        /// The death of the process.
        Os,
        /// The death of the machine.
        #[default]
        Fsync,
    }
);
choice!(
    /// What a put does when the partition is full.
    OnFull {
        /// Waits.
        #[default]
        Block,
        /// Fails.
        Refuse,
        /// Drops the oldest ready group.
        DropOldest,
    }
);
choice!(
    /// What a step short of its target does to the run.
    OnShort {
        /// It is reported and the run goes on.
        #[default]
        Short,
        /// The run ends with an error.
        Error,
    }
);
choice!(
    /// From rewards to advantages.
    AdvantageEstimator {
        /// Relative to the group's mean, in units of its standard deviation.
        #[default]
        Grpo,
        /// Relative to the group's mean.
        GrpoNoStd,
        /// The same; the trainer's loss must not divide by lengths either.
        DrGrpo,
        /// Relative to the mean of the others.
        Rloo,
        /// Relative to the group's mean, in units of the batch's standard deviation.
        ReinforcePlusPlusBaseline,
    }
);
choice!(
    /// How far generation runs ahead.
    PolicyMode {
        /// Not at all.
        #[default]
        Sync,
        /// One step.
        OneStepOff,
        /// As far as the staleness bound allows.
        FullyAsync,
    }
);
choice!(
    /// What becomes of work that is more versions behind than it may be.
    OnStale {
        /// Thrown away, and its prompt with it.
        Drop,
        /// Thrown away; its prompt is sent out again.
        #[default]
        Requeue,
        /// Delivered, and nothing is learnt from the tokens that are too old.
        MaskTokens,
        /// Delivered, and marked as too old.
        DeliverFlagged,
    }
);
choice!(
    /// How servers get the weights of a new version.
    UpdateMethod {
        /// The trainer does it itself.
        #[default]
        None,
        /// They load them from a path.
        Reload,
        /// They receive them from the trainer.
        Transfer,
        /// A program does it.
        Command,
        /// A service does it.
        Http,
    }
);
choice!(
    /// What becomes of running requests while the weights change.
    UpdatePause {
        /// They stand still, and go on with the new weights.
        #[default]
        Keep,
        /// They end with what they have.
        Abort,
        /// They are finished first.
        Wait,
        /// The servers are not paused.
        None,
    }
);
choice!(
    /// Whose variance the filter looks at.
    FilterMetric {
        /// Right or wrong.
        #[default]
        Acc,
        /// The reward, shaping included.
        Reward,
        /// Nobody's: only `gates` and `outside` say what is left out.
        None,
    }
);
choice!(
    /// What the bias guard does.
    GuardAction {
        /// Accept in dispatch order from now on.
        #[default]
        Fifo,
        /// Await everything until the bias has gone.
        LongRound,
    }
);
choice!(
    /// What happens when nothing has happened for too long.
    OnSilence {
        /// A report says what is waited for.
        #[default]
        Report,
        /// The group that is waited for is given up, and its prompt is sent out again.
        CancelAndRequeue,
        /// The run ends with that report; what was accepted is kept.
        Stop,
    }
);

//! The arguments of `rolldock reward`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::examples;
use super::numbers::whole;

/// `rolldock reward`
#[derive(Debug, Args)]
pub struct RewardArgs {
    /// The command.
    #[command(subcommand)]
    pub command: RewardCommand,
}

/// The commands of `rolldock reward`.
#[derive(Debug, Subcommand)]
pub enum RewardCommand {
    /// Score responses: JSON lines with response, ground_truth and perhaps data_source
    #[command(after_help = examples::REWARD_SCORE)]
    Score(ScoreArgs),
    /// Compute advantages: JSON lines with rewards, group and perhaps estimator and epsilon
    #[command(after_help = examples::REWARD_ADVANTAGE)]
    Advantage(AdvantageArgs),
}

/// `rolldock reward score`
#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// JSON lines; - is standard input
    pub file: PathBuf,
    /// The scorer, with its name in recipes; or python, command, http, judge or code, which score outside of
    /// this process
    #[arg(long, value_name = "NAME", default_value = "math_dapo")]
    pub scorer: String,
    /// An option of the scorer, for example variant=2026 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// A second scorer; rows on which the two scorers differ are shown
    #[arg(long, value_name = "NAME")]
    pub against: Option<String>,
    /// An option of the second scorer (repeatable)
    #[arg(long, value_name = "KEY=VALUE", requires = "against")]
    pub against_set: Vec<String>,
    /// Maximum number of disagreements that are shown; all of them are counted
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole(0..=usize::MAX))]
    pub show: usize,
    /// The output file: the rows, with score, acc and pred added [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// `rolldock reward advantage`
#[derive(Debug, Args)]
pub struct AdvantageArgs {
    /// JSON lines; - is standard input
    pub file: PathBuf,
    /// The estimator of rows without an estimator: grpo, grpo_no_std, dr_grpo, rloo,
    /// reinforce_plus_plus_baseline
    #[arg(long, value_name = "NAME", default_value = "grpo")]
    pub estimator: String,
    /// The epsilon of rows without an epsilon; it keeps quotients finite [default: the estimator's, 1e-6;
    /// 1e-8 of reinforce_plus_plus_baseline]
    #[arg(long)]
    pub epsilon: Option<f32>,
    /// The output file: the rows, with the advantages and each group's verdict added [default: standard
    /// output]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

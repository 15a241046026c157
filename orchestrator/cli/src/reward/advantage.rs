//! `rolldock reward advantage`

use std::collections::BTreeMap;

use rolldock_reward::{Estimator, RewardError, filter};
use serde_json::{Value, json};

use super::rows::{self, Row};
use crate::args::AdvantageArgs;
use crate::usage::UsageError;

/// The epsilon of GRPO's reference implementation.
const GRPO_EPSILON: f32 = 1e-6;

pub(super) fn run(args: &AdvantageArgs) -> anyhow::Result<()> {
    let wrong = |flag: &str, error: RewardError| UsageError(format!("{flag}: {error}"));
    of_name(&args.estimator, None).map_err(|error| wrong("--estimator", error))?;
    let usual = of_name(&args.estimator, args.epsilon).map_err(|error| wrong("--epsilon", error))?;
    let (mut rewards_total, mut groups_total, mut valid_total) = (0, 0, 0);
    rows::each(&args.file, args.output.as_deref(), |_, row| {
        let estimator = estimator(row, args, usual)?;
        let rewards: Vec<f32> = rows::value(row, "rewards", "a list of numbers")?;
        if let Some(index) = rewards.iter().position(|reward| !reward.is_finite()) {
            return Err(format!("rewards.{index} is beyond the range of 32 bits"));
        }
        let groups = groups(row, &rewards)?;
        let of_groups: Vec<Vec<f32>> =
            groups.values().map(|members| members.iter().map(|index| rewards[*index]).collect()).collect();
        let slices: Vec<&[f32]> = of_groups.iter().map(Vec::as_slice).collect();
        let of_batch = match lengths(row, &rewards)? {
            None => estimator.of_batch(&slices),
            Some(lengths) => {
                let pick = |members: &Vec<usize>| members.iter().map(|index| lengths[*index]).collect();
                let lengths: Vec<Vec<u32>> = groups.values().map(pick).collect();
                let lengths: Vec<&[u32]> = lengths.iter().map(Vec::as_slice).collect();
                estimator.of_batch_by_tokens(&slices, &lengths)
            }
        };
        let mut advantages = vec![0.0; rewards.len()];
        for (members, of_group) in groups.values().zip(of_batch) {
            members.iter().zip(of_group).for_each(|(index, advantage)| advantages[*index] = advantage);
        }
        if let Some(index) = advantages.iter().position(|advantage| !advantage.is_finite()) {
            return Err(format!(
                "the advantage of rewards.{index} is not a finite number; expected a larger epsilon or other rewards"
            ));
        }
        rewards_total += rewards.len();
        let mut verdicts = Row::new();
        for (name, of_group) in groups.keys().zip(&of_groups) {
            let valid = filter::varies(of_group);
            groups_total += 1;
            valid_total += usize::from(valid);
            let kept = filter::kept_by_deviation(of_group);
            verdicts.insert(name.clone(), json!({ "valid": valid, "kept": kept, "samples": of_group.len() }));
        }
        row.insert("advantage".to_owned(), rows::json(&advantages));
        row.insert("groups".to_owned(), Value::Object(verdicts));
        Ok(())
    })?;
    let summary =
        format!("{rewards_total} rewards in {groups_total} groups; {valid_total} groups vary and are valid");
    super::summarise(args.output.as_deref(), &summary);
    Ok(())
}

fn estimator(row: &Row, args: &AdvantageArgs, usual: Estimator) -> Result<Estimator, String> {
    let name: Option<String> = rows::optional(row, "estimator", "a name")?;
    let epsilon: Option<f32> = rows::optional(row, "epsilon", "a number")?;
    if name.is_none() && epsilon.is_none() {
        return Ok(usual);
    }
    let name = name.as_deref().unwrap_or(&args.estimator);
    of_name(name, epsilon.or(args.epsilon)).map_err(|error| error.to_string())
}

/// The number of tokens of each response, if the row has them. They are the weights of rewards in statistics
/// over a batch.
fn lengths(row: &Row, rewards: &[f32]) -> Result<Option<Vec<u32>>, String> {
    let lengths: Option<Vec<u32>> = rows::optional(row, "lengths", "a list with each response's tokens")?;
    match &lengths {
        Some(lengths) if lengths.len() != rewards.len() => {
            Err(format!("lengths has {} numbers for {} rewards", lengths.len(), rewards.len()))
        }
        _ => Ok(lengths),
    }
}

/// The estimator called `name`. Without an `epsilon`, it uses the epsilon that runs use.
fn of_name(name: &str, epsilon: Option<f32>) -> Result<Estimator, RewardError> {
    match epsilon {
        Some(epsilon) => Estimator::from_name(name, epsilon),
        None if name == "reinforce_plus_plus_baseline" => Ok(Estimator::REINFORCE_PLUS_PLUS_BASELINE),
        None => Estimator::from_name(name, GRPO_EPSILON),
    }
}

/// The positions of rewards by the name of their group, in order of names.
fn groups(row: &Row, rewards: &[f32]) -> Result<BTreeMap<String, Vec<usize>>, String> {
    let names: Vec<Value> = rows::value(row, "group", "a list with a group's name for each reward")?;
    if names.len() != rewards.len() {
        return Err(format!("group has {} names for {} rewards", names.len(), rewards.len()));
    }
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, name) in names.into_iter().enumerate() {
        let name = match name {
            Value::String(name) => name,
            other => other.to_string(),
        };
        groups.entry(name).or_default().push(index);
    }
    Ok(groups)
}

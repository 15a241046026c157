//! The columns of trajectories in rows of runs, of the gateway and of a DataPool are the columns of the
//! guide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use rolldock_dispatch::rows::{trajectory_schema, with_token_advantages};
use rolldock_queue::{QueueConfig, TransferQueue};
use rolldock_queue_compat::{DataPool, Path, PoolConfig, Step, StepTurn};
use serde_json::json;

use super::engine::says;
use super::rig::{Rig, said, user};

/// The columns of `docs/src/rows.md`, with their types.
fn guide() -> BTreeMap<String, String> {
    let text = include_str!("../../../../docs/src/rows.md");
    let column = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let name = cells.next()?.strip_suffix('`')?;
        let dtype = cells.next()?.strip_prefix('`')?.split('`').next()?;
        Some((name.to_owned(), dtype.to_owned()))
    };
    text.lines().filter_map(column).collect()
}

fn name_of(dtype: &DataType) -> String {
    match dtype {
        DataType::List(item) => format!("List<{}>", name_of(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|field| format!("{}: {}", field.name(), name_of(field.data_type())))
                .collect();
            format!("Struct<{}>", fields.join(", "))
        }
        other => other.to_string(),
    }
}

fn columns(schema: &Schema) -> BTreeMap<String, String> {
    schema.fields().iter().map(|field| (field.name().clone(), name_of(field.data_type()))).collect()
}

/// The names that only the first map has. Checks that names in both maps have the same types.
fn beside(own: &BTreeMap<String, String>, others: &BTreeMap<String, String>) -> BTreeSet<String> {
    for (name, dtype) in own {
        assert!(
            others.get(name).is_none_or(|other| other == dtype),
            "{name}: {dtype}, and {:?}",
            others.get(name)
        );
    }
    own.keys().filter(|name| !others.contains_key(*name)).cloned().collect()
}

fn named<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

async fn pool() -> DataPool {
    let queue = Arc::new(TransferQueue::open(QueueConfig::default()).unwrap());
    DataPool::open(queue, PoolConfig::new("pool", ["train"], 64, 1)).await.unwrap()
}

#[tokio::test]
async fn rows_of_runs_gateways_and_pools_have_the_columns_of_the_guide() {
    let guide = guide();
    let of_runs = columns(&with_token_advantages(&trajectory_schema()));
    assert_eq!((beside(&of_runs, &guide), beside(&guide, &of_runs)), (named([]), named([])));
    let of_gateway = columns(&crate::schema());
    assert_eq!(beside(&of_gateway, &guide), named(["prompt"]));

    let pool = pool().await;
    let step = Step {
        prompt_ids: vec![1],
        response_ids: vec![2, 3],
        reward: 0.5,
        trajectory_uid: "t".to_owned(),
        prompt_uid: "p".to_owned(),
        step_index: 0,
        policy_version: 7,
        is_last: true,
        metadata: json!({}),
        path: Path::default(),
    };
    pool.submit_step(step).await.unwrap();
    let batch = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    let of_pool = columns(&batch.batch().schema());
    let of_steps =
        ["importance_weight", "incomplete", "is_last", "off_policy", "policy_version", "step_index"];
    assert_eq!(beside(&of_pool, &guide), named(of_steps));
    let only_gateway = ["advantage", "prompt", "server", "version_source", "version_spans"];
    assert_eq!(beside(&of_gateway, &of_pool), named(only_gateway));
}

/// The columns `names` of a batch as text, for a comparison.
fn shown(batch: &RecordBatch, names: &[&str]) -> Vec<String> {
    names.iter().map(|name| format!("{name}: {:?}", batch.column_by_name(name).unwrap())).collect()
}

#[tokio::test]
async fn a_forked_trajectory_has_the_same_values_in_a_pool_as_in_a_gateway() {
    let rig = Rig::new().await;
    rig.engine.script([says("root"), says("left"), says("right")]);
    let opened = rig.open(json!({ "group": "p" })).await;
    let root = said(&rig.chat(&opened, &json!([user("x")])).await);
    for question in ["R", "S"] {
        rig.chat(&opened, &json!([user("x"), root, user(question)])).await;
    }
    rig.complete(&opened.uid, json!({ "reward": 3.0, "turn_rewards": [1, 0, 2] })).await;
    let of_gateway = rig.rows().await;

    // The prompts that the engine got and the tokens that it drew determine the rows.
    let (prompts, drawn) = (rig.engine.prompts(), rig.engine.drawn());
    let row = |branch: u32, last: usize, mask_of_root: u8, rewards: [f32; 2]| {
        let begun = prompts[0].len();
        let response_ids = [&prompts[last][begun..], &drawn[last]].concat();
        let (first, second) = (drawn[0].len(), prompts[last].len() - begun);
        let mut mask = vec![0; response_ids.len()];
        mask[..first].fill(mask_of_root);
        mask[second..].fill(1);
        let [before, after] = [(0, first), (second, response_ids.len())];
        let turn = |(start, end): (usize, usize), reward| StepTurn {
            start: start as u32,
            end: end as u32,
            reward: Some(reward),
        };
        Step {
            prompt_ids: prompts[0].clone(),
            response_ids,
            reward: 3.0,
            trajectory_uid: opened.uid.clone(),
            prompt_uid: "p".to_owned(),
            step_index: branch,
            policy_version: 1,
            is_last: branch == 1,
            metadata: json!({}),
            path: Path {
                branch,
                response_mask: Some(mask),
                turns: Some(vec![turn(before, rewards[0]), turn(after, rewards[1])]),
                end: "completed".to_owned(),
                ..Path::default()
            },
        }
    };
    let pool = pool().await;
    pool.submit_steps(&[row(0, 1, 1, [1.0, 0.0]), row(1, 2, 0, [1.0, 2.0])]).await.unwrap();
    let of_pool = pool.fetch_batch("train", 1).await.unwrap().unwrap();
    let names = [
        "prompt_uid",
        "sample_index",
        "trajectory_uid",
        "branch",
        "prompt_ids",
        "response_ids",
        "response_mask",
        "reward",
        "turn_starts",
        "turn_ends",
        "turn_rewards",
        "finish_reason",
        "policy_version_min",
        "policy_version_max",
        "is_reencoded",
        "end",
        "metadata",
    ];
    assert_eq!(shown(of_pool.batch(), &names), shown(&of_gateway, &names));
    assert_eq!(of_gateway.num_rows(), 2);
}

//! Advantages of turns, from the rewards of turns.

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use rolldock_reward::{Estimator, TurnEstimator};
use serde_json::json;

use super::engine::says;
use super::rig::{Rig, floats, mask, numbers, said, texts, user};

async fn rig() -> Rig {
    Rig::with(|config| config.advantage = Estimator::PerTurn(TurnEstimator::GRPO_PROCESS)).await
}

#[tokio::test]
async fn each_trained_token_has_the_advantage_of_its_turn() {
    let rig = rig().await;
    rig.engine.script([says("root"), says("left"), says("right"), says("other")]);
    let creation = json!({ "group": "g", "group_size": 2 });
    let [forked, single] = [rig.open(creation.clone()).await, rig.open(creation).await];
    let root = said(&rig.chat(&forked, &json!([user("x")])).await);
    for question in ["R", "S"] {
        rig.chat(&forked, &json!([user("x"), root, user(question)])).await;
    }
    rig.chat(&single, &json!([user("x")])).await;
    // The rewards 1, 0, 2 and 1 have mean 1 and squared distances 0, 1, 1 and 0: the variance is 2 / 3. Normalised they
    // are 0, -unit, unit and 0, and their sums from each turn on are 0, 0, unit and 0.
    assert_eq!(rig.complete(&forked.uid, json!({ "turn_rewards": [1, 0, 2] })).await.0, 200);
    assert_eq!(rig.complete(&single.uid, json!({ "turn_rewards": [1] })).await.0, 200);
    let unit = 1.5_f32.sqrt();
    let rows = rig.rows().await;
    assert_eq!(texts(&rows, "trajectory_uid"), [&forked.uid, &forked.uid, &single.uid].map(String::clone));
    let column = rows.column_by_name("token_advantages").unwrap().as_list::<i32>();
    for (row, advantage) in [(0, 0.0), (1, unit), (2, 0.0)] {
        let advantages = column.value(row);
        let advantages = advantages.as_primitive::<Float32Type>().values();
        assert_eq!(advantages.len(), numbers(&rows, "response_ids", row).len());
        for (token, trained) in advantages.iter().zip(mask(&rows, row)) {
            let expected = if trained == 1 { advantage } else { 0.0 };
            assert!((token - expected).abs() < 1e-5, "row {row}: {advantages:?}");
        }
    }
    assert!(mask(&rows, 1).contains(&0), "the root is trained in the first row");
    // Whole trajectories have the rewards 3 and 1.
    let of_rows = floats(&rows, "advantage");
    let half = 1.0 / 2.0_f32.sqrt();
    assert!(of_rows.iter().zip([half, half, -half]).all(|(a, b)| (a - b).abs() < 1e-5), "{of_rows:?}");
}

#[tokio::test]
async fn a_reward_without_those_of_turns_is_refused() {
    let rig = rig().await;
    let opened = rig.open(json!({})).await;
    rig.chat(&opened, &json!([user("x")])).await;
    for reward in [json!({ "reward": 1.0 }), json!({ "turn_rewards": [] , "reward": 1.0 })] {
        let (status, refused) = rig.complete(&opened.uid, reward).await;
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("expected turn_rewards"), "{refused}");
    }
    assert_eq!(rig.show(&opened.uid).await["state"], "open");
    // A trajectory without turns has no turn that could get a reward.
    let empty = rig.open(json!({})).await;
    assert_eq!(rig.complete(&empty.uid, json!({ "reward": 0.0 })).await.0, 200);
}

#[tokio::test]
async fn other_estimators_add_no_column() {
    let rig = Rig::with(|config| config.advantage = Estimator::from_name("grpo_no_std", 0.0).unwrap()).await;
    let creation = json!({ "group": "g", "group_size": 2 });
    for reward in [1.0, 0.0] {
        let opened = rig.open(creation.clone()).await;
        rig.chat(&opened, &json!([user("x")])).await;
        assert_eq!(rig.complete(&opened.uid, json!({ "reward": reward })).await.0, 200);
    }
    let rows = rig.rows().await;
    assert_eq!(floats(&rows, "advantage"), [0.5, -0.5]);
    assert!(rows.column_by_name("token_advantages").is_none());
}

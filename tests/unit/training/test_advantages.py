"""verl's numbers on our masks, against values worked out by hand: lambda < 1 and observation tokens in the middle.

These pin what the trainer does with a trajectory, so that a new version of verl cannot change it unseen. Cases 41-46, 51,
77-82, 85, 91-94, 99, 101, 102 of the fault collection that `docs/fidelity.md` describes.
"""

from __future__ import annotations

import pytest
import torch
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import masked_mean, masked_whiten


def gae(rewards, values, mask, gamma=1.0, lam=0.95):
    """Raw advantages and returns; verl whitens in place, so whitening is undone from the returns: A = R - V."""
    rewards, values, mask = (torch.tensor([x], dtype=torch.float32) for x in (rewards, values, mask))
    advantages, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, gamma, lam)
    return advantages[0], returns[0], (returns - values)[0]


def hand_gae(rewards, values, gamma, lam):
    """Equation 16 of arXiv 1506.02438 over the policy's tokens only."""
    out, advantage = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        next_value = values[t + 1] if t + 1 < len(values) else 0.0
        delta = rewards[t] + gamma * next_value - values[t]
        advantage = delta + gamma * lam * advantage
        out[t] = advantage
    return out


def test_case_77_gae_skips_observation_tokens():
    _, _, raw = gae([0, 0, 0, 0, 0, 1], [0.1, 0.2, 9, 9, 0.3, 0.4], [1, 1, 0, 0, 1, 1])
    assert raw[[0, 1, 4, 5]].tolist() == pytest.approx([0.799675, 0.7365, 0.67, 0.6], abs=1e-5)


def test_gae_equals_the_compact_sequence_with_gamma_and_lambda_below_one():
    rewards, values, mask = (
        [0.0, -0.1, 0, 0, 0.2, 0, 0, 1.0],
        [0.5, 0.4, 7, -3, 0.3, 0.1, 5, 0.2],
        [1, 1, 0, 0, 1, 1, 0, 1],
    )
    keep = [i for i, m in enumerate(mask) if m]
    _, returns, raw = gae(rewards, values, mask, gamma=0.9, lam=0.8)
    expected = hand_gae([rewards[i] for i in keep], [values[i] for i in keep], 0.9, 0.8)
    assert raw[keep].tolist() == pytest.approx(expected, abs=1e-5)
    assert returns[keep].tolist() == pytest.approx(
        [e + values[i] for e, i in zip(expected, keep, strict=True)], abs=1e-5
    )


def test_advantages_are_whitened_over_policy_tokens_only_and_zero_elsewhere():
    mask = [1, 1, 0, 0, 1, 1]
    advantages, _, raw = gae([0, 0, 0, 0, 0, 1], [0.1, 0.2, 9, 9, 0.3, 0.4], mask)
    kept = raw[[0, 1, 4, 5]]
    expected = (kept - kept.mean()) / kept.std()
    assert advantages[[0, 1, 4, 5]].tolist() == pytest.approx(expected.tolist(), abs=1e-3)


def test_case_81_one_token_response():
    """The value of a token is that of the state before it: A = r - V(prompt). Two rows, because whitening one token is undefined."""
    rewards, values = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.25], [0.5]])
    _, returns = core_algos.compute_gae_advantage_return(rewards, values.clone(), torch.ones(2, 1), 1.0, 0.95)
    assert (returns - values)[:, 0].tolist() == pytest.approx([0.75, -0.5])


def test_case_78_the_reward_must_sit_on_a_policy_token():
    """With the reward on a masked position it is lost: why a trajectory ends on a policy token (invariant 6)."""
    _, _, lost = gae([0, 0, 0, 1], [0.5, 0.5, 7, 7], [1, 1, 0, 0])
    _, _, kept = gae([0, 1], [0.5, 0.5], [1, 1])
    assert lost[:2].tolist() == pytest.approx([-0.475, -0.5], abs=1e-6)
    assert kept.tolist() == pytest.approx([0.475, 0.5], abs=1e-6)


def test_cases_42_43_observation_tokens_have_no_gradient_and_no_say_in_the_loss():
    mask = torch.tensor([[1.0, 1, 0, 0, 1]])
    old = torch.full((1, 5), -1.0)
    advantages = torch.tensor([[0.5, -0.3, 9.0, 9.0, 1.0]])

    def loss_and_gradient(log_probs):
        log_probs = log_probs.clone().requires_grad_()
        loss = _policy_loss(old, log_probs, advantages, mask)
        loss.backward()
        return loss.item(), log_probs.grad[0]

    log_probs = torch.tensor([[-1.1, -0.9, -5.0, -7.0, -1.0]])
    loss, gradient = loss_and_gradient(log_probs)
    assert gradient[[2, 3]].tolist() == [0.0, 0.0]
    assert all(gradient[[0, 1, 4]] != 0)
    log_probs[0, 2:4] = torch.tensor([-0.1, -11.0])
    assert loss_and_gradient(log_probs)[0] == pytest.approx(loss)


def test_case_46_the_mask_matters():
    old, log_probs = torch.full((1, 4), -1.0), torch.tensor([[-1.2, -0.8, -2.0, -1.0]])
    advantages = torch.tensor([[1.0, 1.0, -5.0, 1.0]])
    masked = _policy_loss(old, log_probs, advantages, torch.tensor([[1.0, 1, 0, 1]]))
    unmasked = _policy_loss(old, log_probs, advantages, torch.ones(1, 4))
    assert abs(masked - unmasked) > 0.1


def test_case_101_dual_clip_bounds_the_loss():
    log_ratio = torch.log(torch.tensor([[50.0]]))
    loss = _policy_loss(torch.zeros(1, 1), log_ratio, torch.tensor([[-1.0]]), torch.ones(1, 1))
    assert loss.item() == pytest.approx(3.0)


def test_case_92_a_huge_ratio_stays_finite():
    log_probs = torch.tensor([[200.0]], requires_grad=True)
    loss = _policy_loss(torch.zeros(1, 1), log_probs, torch.tensor([[-1.0]]), torch.ones(1, 1))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(log_probs.grad).all()


@pytest.mark.parametrize(
    "log_prob, ref, k1, k2, k3", [(-1.0, -2.0, 1.0, 0.5, 0.367879), (-2.0, -1.0, -1.0, 0.5, 0.718282)]
)
def test_case_93_kl_estimators(log_prob, ref, k1, k2, k3):
    a, b = torch.tensor([[log_prob]]), torch.tensor([[ref]])
    for name, expected in (("kl", k1), ("mse", k2), ("low_var_kl", k3)):
        assert core_algos.kl_penalty(a, b, name).item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "value, old, target, clip, expected", [(1, 0, 2, 0.5, 1.125), (1, 5, 10, 0.2, 40.5), (5, 1, 10, 0.2, 38.72)]
)
def test_case_99_value_clip(value, old, target, clip, expected):
    tensors = (torch.tensor([[float(x)]]) for x in (value, target, old))
    vpreds, returns, values = tensors
    loss, _ = core_algos.compute_value_loss(vpreds, returns, values, torch.ones(1, 1), clip)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_case_85_masked_statistics_survive_nan_and_empty_masks():
    assert masked_mean(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 0.0])).item() == pytest.approx(1.0)
    assert torch.isfinite(masked_mean(torch.tensor([1.0, 2.0]), torch.zeros(2)))
    assert torch.isfinite(masked_whiten(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]]))).all()


def test_case_102_token_mean_over_the_mini_batch_not_over_micro_batches():
    losses = torch.tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    whole = core_algos.agg_loss(losses, mask, "token-mean", batch_num_tokens=4, dp_size=1)
    split = sum(
        core_algos.agg_loss(losses[i : i + 1], mask[i : i + 1], "token-mean", batch_num_tokens=4, dp_size=1)
        for i in (0, 1)
    )
    assert whole.item() == pytest.approx(2.0)
    assert split.item() == pytest.approx(2.0)


def _policy_loss(old, log_probs, advantages, mask):
    from verl.workers.config import ActorConfig

    config = ActorConfig(
        strategy="fsdp2", rollout_n=1, clip_ratio=0.2, ppo_micro_batch_size_per_gpu=1, use_dynamic_bsz=False
    )
    config.global_batch_info.clear()
    loss, *_ = core_algos.compute_policy_loss_vanilla(old, log_probs, advantages, mask, "token-mean", config)
    return loss

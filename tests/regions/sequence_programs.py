"""Sequences, searches, clusters and rollouts as a user writes them.

Each function takes a matrix of 20 rows and 4 columns.
"""

from __future__ import annotations

from typing import Any

import torch


def greedy_decoding(x: torch.Tensor) -> Any:
    """Tokens until one that ends the text, written to a buffer."""
    table = torch.linspace(-1, 1, 32).reshape(8, 4)
    tokens = torch.zeros(32, dtype=torch.int64)
    h, token = x[0], torch.tensor(1)
    length = 0
    for i in range(32):
        h = torch.tanh(h + table[token])
        token = (table @ h).argmax()
        tokens[i] = token
        length += 1
        if token == 3:
            break
    return tokens, length


def decoding_while(x: torch.Tensor) -> Any:
    """The same by a position that is a tensor."""
    table = torch.linspace(-1, 1, 32).reshape(8, 4)
    tokens = torch.zeros(32, dtype=torch.int64)
    position = torch.tensor(0)
    h = x[0]
    while position < 31 and tokens[position] != 3:
        h = torch.tanh(h + table[tokens[position]])
        position = position + 1
        tokens[position] = (table @ h).argmax()
    return tokens, position


def batched_decoding(x: torch.Tensor) -> Any:
    table = torch.linspace(-1, 1, 32).reshape(8, 4)
    token = torch.ones(20, dtype=torch.int64)
    finished = torch.zeros(20, dtype=torch.bool)
    out = []
    h = x
    for _ in range(24):
        h = torch.tanh(h + table[token])
        token = (h @ table.t()).argmax(-1)
        token = torch.where(finished, 0, token)
        finished = finished | (token == 3)
        out.append(token)
    return torch.stack(out, 1), finished


def beam_search(x: torch.Tensor) -> Any:
    table = torch.linspace(-1, 1, 32).reshape(8, 4)
    scores = torch.tensor([0.0, -1e9, -1e9])
    beams = torch.zeros(3, 21, dtype=torch.int64)
    h = x[:3]
    for step in range(20):
        logits = torch.log_softmax((h + table[beams[:, step]]) @ table.t(), -1)
        total = (scores[:, None] + logits).reshape(-1)
        scores, best = total.topk(3)
        parent = best // 8
        beams = beams[parent]
        beams[:, step + 1] = best % 8
        h = torch.tanh(h[parent])
    return beams, scores


def key_value_cache(x: torch.Tensor) -> torch.Tensor:
    keys, values = torch.zeros(20, 4), torch.zeros(20, 4)
    out = torch.zeros(20, 4)
    for t in range(20):
        keys[t] = x[t]
        values[t] = x[t] * 2
        weights = torch.softmax(keys[: t + 1] @ x[t], 0)
        out[t] = weights @ values[: t + 1]
    return out


def viterbi(x: torch.Tensor) -> Any:
    transition = torch.linspace(-1, 1, 16).reshape(4, 4)
    score = x[0]
    back = torch.zeros(20, 4, dtype=torch.int64)
    for t in range(1, 20):
        total = score[:, None] + transition
        best, index = total.max(0)
        back[t] = index
        score = best + x[t]
    path = torch.zeros(20, dtype=torch.int64)
    path[19] = score.argmax()
    for t in range(18, -1, -1):
        path[t] = back[t + 1, path[t + 1]]
    return path, score.max()


def viterbi_with_lists(x: torch.Tensor) -> Any:
    transition = torch.linspace(-1, 1, 16).reshape(4, 4)
    score, history = x[0], []
    for row in x[1:]:
        best, index = (score[:, None] + transition).max(0)
        score = best + row
        history.append(index)
    state = score.argmax()
    path = [state]
    for index in reversed(history):
        state = index[state]
        path.append(state)
    path.reverse()
    return torch.stack(path), score


def ctc_alpha(x: torch.Tensor) -> torch.Tensor:
    labels = torch.tensor([0, 1, 0, 2, 0, 1, 0])
    logits = torch.log_softmax(x, -1)
    alpha = torch.full((20, 7), -1e9)
    alpha[0, 0] = logits[0, 0]
    alpha[0, 1] = logits[0, 1]
    for t in range(1, 20):
        for s in range(7):
            total = alpha[t - 1, s]
            if s > 0:
                total = torch.logaddexp(total, alpha[t - 1, s - 1])
            if s > 1 and labels[s] != 0 and labels[s] != labels[s - 2]:
                total = torch.logaddexp(total, alpha[t - 1, s - 2])
            alpha[t, s] = total + logits[t, labels[s]]
    return torch.logaddexp(alpha[19, 6], alpha[19, 5])


def edit_distance(x: torch.Tensor) -> torch.Tensor:
    a, b = (x[:, 0] > 0).long(), (x[:18, 1] > 0).long()
    table = torch.zeros(21, 19, dtype=torch.int64)
    table[:, 0] = torch.arange(21)
    table[0] = torch.arange(19)
    for i in range(1, 21):
        for j in range(1, 19):
            if a[i - 1] == b[j - 1]:
                table[i, j] = table[i - 1, j - 1]
            else:
                table[i, j] = 1 + torch.min(
                    torch.min(table[i - 1, j], table[i, j - 1]), table[i - 1, j - 1]
                )
    return table[20, 18]


def time_warping(x: torch.Tensor) -> torch.Tensor:
    cost = torch.cdist(x, x.flip(0))
    table = torch.full((21, 21), float("inf"))
    table[0, 0] = 0
    for i in range(1, 21):
        for j in range(1, 21):
            before = torch.stack([table[i - 1, j], table[i, j - 1], table[i - 1, j - 1]])
            table[i, j] = cost[i - 1, j - 1] + before.min()
    return table[-1, -1]


def k_means(x: torch.Tensor) -> Any:
    centres = x[:3].clone()
    for _ in range(30):
        labels = torch.cdist(x, centres).argmin(1)
        one_hot = torch.nn.functional.one_hot(labels, 3).to(x.dtype)
        moved = one_hot.t() @ x / one_hot.sum(0).clamp(min=1)[:, None]
        shift = (moved - centres).abs().max()
        centres = moved
        if shift < 1e-6:
            break
    return centres, labels


def k_means_cluster_by_cluster(x: torch.Tensor) -> torch.Tensor:
    centres = x[:3].clone()
    for _ in range(20):
        labels = torch.cdist(x, centres).argmin(1)
        for k in range(3):
            mask = labels == k
            if mask.any():
                centres[k] = (x * mask[:, None]).sum(0) / mask.sum()
    return centres


def mixture_of_gaussians(x: torch.Tensor) -> Any:
    means, log_weights = x[:2].clone(), torch.zeros(2)
    likelihood = torch.tensor(-1e9)
    while True:
        distance = ((x[:, None] - means) ** 2).sum(-1)
        joint = log_weights - distance / 2
        total = torch.logsumexp(joint, 1)
        r = torch.exp(joint - total[:, None])
        means = r.t() @ x / r.sum(0)[:, None]
        log_weights = torch.log(r.mean(0))
        new = total.sum()
        if new - likelihood < 1e-3:
            break
        likelihood = new
    return means, log_weights, likelihood


def particle_filter(x: torch.Tensor) -> Any:
    particles = torch.linspace(-2, 2, 50)
    estimates = []
    for t in range(20):
        particles = 0.9 * particles + 0.1
        weights = torch.softmax(-((particles - x[t, 0]) ** 2), 0)
        estimates.append((weights * particles).sum())
        effective = 1 / (weights**2).sum()
        if effective < 25:
            places = torch.searchsorted(weights.cumsum(0), torch.linspace(0, 0.99, 50))
            particles = particles[places.clamp(max=49)]
    return particles, torch.stack(estimates)


def rollout(x: torch.Tensor) -> Any:
    """An environment with an end; rewards of later steps are discounted."""
    state, total, discount = x[0], torch.zeros(()), 1.0
    for _ in range(50):
        action = torch.tanh(state.sum())
        state = state * 0.9 + action
        reward = -state.abs().sum()
        total = total + discount * reward
        discount *= 0.99
        if state.abs().max() > 3:
            break
    return total, state


def returns(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(20)
    running = torch.zeros(())
    for t in reversed(range(20)):
        running = x[t, 0] + 0.99 * running
        out[t] = running
    return out


def advantages(x: torch.Tensor) -> torch.Tensor:
    rewards, values, ends = x[:, 0], x[:, 1], x[:, 2] > 1
    found = []
    last = torch.zeros(())
    for t in range(18, -1, -1):
        delta = rewards[t] + 0.99 * values[t + 1] * (~ends[t]) - values[t]
        last = delta + 0.95 * last * (~ends[t])
        found.insert(0, last)
    return torch.stack(found)


def q_learning(x: torch.Tensor) -> torch.Tensor:
    q = torch.zeros(5, 4)
    state = torch.tensor(0)
    for t in range(20):
        action = (q[state] + x[t]).argmax()
        following = (state + action) % 5
        target = x[t].max() + 0.9 * q[following].max()
        q[state, action] += 0.1 * (target - q[state, action])
        state = following
    return q


def mixture_of_experts(x: torch.Tensor) -> torch.Tensor:
    experts = torch.linspace(-1, 1, 48).reshape(3, 4, 4)
    scores, chosen = torch.softmax(x[:, :3], -1).topk(2)
    out = torch.zeros_like(x)
    for e in range(3):
        for k in range(2):
            mask = (chosen[:, k] == e)[:, None]
            out = out + torch.where(mask, scores[:, k : k + 1] * (x @ experts[e]), 0)
    return out


def routed_row_by_row(x: torch.Tensor) -> torch.Tensor:
    experts = torch.linspace(-1, 1, 48).reshape(3, 4, 4)
    chosen = x[:, :3].argmax(1)
    out = torch.empty_like(x)
    for i in range(20):
        out[i] = x[i] @ experts[chosen[i]]
    return out


def suppression(x: torch.Tensor) -> torch.Tensor:
    boxes = torch.cat([x[:, :2], x[:, :2] + x[:, 2:].abs()], 1)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    keep = torch.ones(20, dtype=torch.bool)
    for i in range(20):
        if keep[i]:
            low = torch.maximum(boxes[i, :2], boxes[i + 1 :, :2])
            high = torch.minimum(boxes[i, 2:], boxes[i + 1 :, 2:])
            inner = (high - low).clamp(min=0).prod(1)
            overlap = inner / (area[i] + area[i + 1 :] - inner)
            keep[i + 1 :] &= overlap < 0.5
    return keep


def bubble_sort(x: torch.Tensor) -> torch.Tensor:
    y = x[:, 0].clone()
    for _ in range(20):
        for j in range(19):
            if y[j] > y[j + 1]:
                y[j], y[j + 1] = y[j + 1].clone(), y[j].clone()
    return y


def union_find(x: torch.Tensor) -> torch.Tensor:
    parent = torch.arange(20)
    links = (x[:, :2].abs() * 100).long() % 20
    for i in range(20):
        a, b = links[i, 0], links[i, 1]
        while parent[a] != a:
            a = parent[a]
        while parent[b] != b:
            b = parent[b]
        parent[a] = b
    return parent


def sampling_steps(x: torch.Tensor) -> Any:
    """A sampler that keeps all its states."""
    trajectory = torch.empty(21, 20, 4)
    trajectory[0] = x
    sigmas = torch.linspace(1, 0.05, 20)
    for i, sigma in enumerate(sigmas):
        noise = torch.tanh(trajectory[i] * sigma)
        trajectory[i + 1] = trajectory[i] - 0.1 * noise
    return trajectory


PROGRAMS = [
    value for value in vars().copy().values() if getattr(value, "__module__", "") == __name__
]

"""Sampling, decoding, augmentation and metrics: each takes ``compile`` and gives what is to be compared."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .training_programs import mlp, randn

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def beam_search(compile):
    @compile
    def step(scores, log_probabilities, width):
        total = scores[:, None] + log_probabilities
        best, index = total.flatten().topk(width)
        return best, index // total.shape[1], index % total.shape[1]

    scores, found = torch.zeros(4), []
    for number in range(5):
        scores, beams, words = step(scores, randn(4, 30, seed=number).log_softmax(-1), 4)
        found += [scores, beams, words]
    return found


@program
def greedy_decoding_with_a_stop(compile):
    embedding, cell, head = nn.Embedding(11, 8), nn.GRUCell(8, 8), nn.Linear(8, 11)

    @compile
    @torch.no_grad()
    def decode(state, longest):
        word, words = torch.zeros(len(state), dtype=torch.long), []
        for _ in range(longest):
            state = cell(embedding(word), state)
            word = head(state).argmax(-1)
            words.append(word)
            if (word == 10).all():
                break
        return torch.stack(words, 1)

    return [decode(randn(3, 8, seed=seed), 6) for seed in range(3)]


@program
def nucleus(compile):
    @compile
    def filtered(logits, count, share, temperature=1.0):
        logits = logits / temperature
        lowest = logits.topk(count).values[..., -1:]
        logits = logits.masked_fill(logits < lowest, -float("inf"))
        ordered, index = logits.sort(descending=True)
        late = ordered.softmax(-1).cumsum(-1) > share
        late[..., 1:] = late[..., :-1].clone()
        late[..., 0] = False
        return logits.masked_fill(late.scatter(-1, index, late), -float("inf")).softmax(-1)

    return [filtered(randn(2, 12, seed=k), 5, 0.8 + 0.02 * k, 0.7 + 0.1 * k) for k in range(4)]


@program
def repetition_penalty(compile):
    @compile
    def penalise(logits, words, penalty):
        chosen = logits.gather(1, words)
        chosen = torch.where(chosen < 0, chosen * penalty, chosen / penalty)
        return logits.scatter(1, words, chosen)

    return [penalise(randn(2, 9), torch.arange(2 * n).view(2, n) % 9, 1.2) for n in (2, 3, 4)]


@program
def diffusion_sampler(compile):
    network = mlp(3, 16, 2)
    betas = torch.linspace(1e-3, 0.2, 8)
    kept = torch.cumprod(1 - betas, 0)

    @compile
    @torch.no_grad()
    def sample(x, noises):
        path = []
        for t in reversed(range(len(betas))):
            step = torch.full((len(x), 1), t / len(betas))
            noise = network(torch.cat([x, step], 1))
            mean = (x - betas[t] / (1 - kept[t]).sqrt() * noise) / (1 - betas[t]).sqrt()
            x = mean + (betas[t].sqrt() * noises[t] if t > 0 else 0)
            path.append(x)
        return torch.stack(path)

    return [sample(randn(n, 2), randn(8, n, 2, seed=1)) for n in (3, 4, 5)]


@program
def guided_flow(compile):
    network = mlp(3, 8, 2)

    @compile
    @torch.inference_mode()
    def integrate(x, steps, guidance):
        for step in range(steps):
            time = torch.full((len(x), 1), step / steps)
            with_label, without = network(
                torch.cat([torch.cat([x, x * 0]), time.repeat(2, 1)], 1)
            ).chunk(2)
            x = x + (without + guidance * (with_label - without)) / steps
        return x

    return [integrate(randn(3, 2), steps, 2.0).clone() for steps in (3, 4, 5)]


@program
def augmentation(compile):
    @compile
    def augment(images, top, left, flip, brightness, mean=(0.5, 0.4), std=(0.2, 0.3)):
        images = F.pad(images, (2, 2, 2, 2), mode="reflect")[..., top : top + 8, left : left + 8]
        if flip:
            images = images.flip(-1)
        images = (images * brightness).clamp(0, 1)
        mean, std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
        return (images - mean) / std

    images = randn(2, 2, 8, 8).abs()
    return [augment(images, k, 3 - k, k % 2 == 0, 1 + 0.1 * k) for k in range(4)]


@program
def cut_and_paste(compile):
    @compile
    def paste(images, labels, order, box):
        top, left, bottom, right = box
        images = images.clone()
        images[:, :, top:bottom, left:right] = images[order, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (images.shape[-1] * images.shape[-2])
        return images, share * labels + (1 - share) * labels[order]

    images, labels = randn(3, 2, 6, 6), torch.eye(3)
    order = torch.tensor([2, 0, 1])
    return [paste(images, labels, order, (k, 1, k + 3, 4)) for k in range(3)]


@program
def affine_warp(compile):
    @compile
    def warp(images, angles):
        cosine, sine, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
        rows = [torch.stack([cosine, -sine, zero], 1), torch.stack([sine, cosine, zero], 1)]
        grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False)

    return warp(randn(2, 1, 5, 5), torch.tensor([0.1, 0.5]))


@program
def boxes(compile):
    @compile
    def overlaps(a, b):
        top = torch.maximum(a[:, None, :2], b[None, :, :2])
        bottom = torch.minimum(a[:, None, 2:], b[None, :, 2:])
        common = (bottom - top).clamp(min=0).prod(-1)
        areas = [(c[:, 2:] - c[:, :2]).prod(-1) for c in (a, b)]
        return common / (areas[0][:, None] + areas[1] - common)

    corner = randn(4, 2).abs()
    a = torch.cat([corner, corner + 1], 1)
    return overlaps(a, a + 0.3)


@program
def suppressed_boxes(compile):
    @compile
    def suppress(overlap, scores, threshold):
        order, kept = scores.argsort(descending=True).tolist(), []
        while order:
            first = order.pop(0)
            kept.append(first)
            order = [other for other in order if overlap[first, other] < threshold]
        return torch.tensor(kept)

    overlap = (
        torch.eye(4) + torch.diag(torch.full((3,), 0.6), 1) + torch.diag(torch.full((3,), 0.6), -1)
    )
    return [suppress(overlap, randn(4, seed=k), 0.5) for k in range(3)]


@program
def metrics(compile):
    @compile
    def measure(logits, labels, classes):
        guess = logits.argmax(-1)
        confusion = torch.zeros(classes, classes, dtype=torch.long)
        confusion.index_put_((labels, guess), torch.ones_like(labels), accumulate=True)
        right = confusion.diagonal()
        precision = right / confusion.sum(0).clamp(min=1)
        recall = right / confusion.sum(1).clamp(min=1)
        f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-9)
        return {
            "confusion": confusion,
            "f1": f1.mean(),
            "accuracy": (guess == labels).float().mean(),
        }

    return [measure(randn(12, 3, seed=k), torch.arange(12) % 3, 3) for k in range(3)]


@program
def padded_batches(compile):
    @compile
    def pool(sequences):
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        padded = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        mask = torch.arange(padded.shape[1])[None] < lengths[:, None]
        mean = (padded * mask[..., None]).sum(1) / lengths[:, None]
        return mean, padded.masked_fill(~mask[..., None], -float("inf")).amax(1)

    return [pool([randn(n, 3, seed=n) for n in lengths]) for lengths in ((2, 4, 1), (3, 3, 5))]


@program
def masked_language_loss(compile):
    @compile
    def loss_of(logits, labels):
        mask = labels != -100
        return F.cross_entropy(logits[mask], labels[mask]), mask.sum()

    labels = [torch.tensor([1, -100, 3, 2]), torch.tensor([1, -100, -100, 2])]
    return [loss_of(randn(4, 7), row) for row in labels]


@program
def optimal_transport(compile):
    @compile
    def plan(cost, epsilon, rounds):
        scores = -cost / epsilon
        rows, columns = torch.zeros(cost.shape[0]), torch.zeros(cost.shape[1])
        for _ in range(rounds):
            rows = -torch.logsumexp(scores + columns, 1)
            columns = -torch.logsumexp(scores + rows[:, None], 0)
        return (scores + rows[:, None] + columns).exp()

    return [plan(randn(4, 4).abs(), 0.5, rounds) for rounds in (2, 5, 20)]

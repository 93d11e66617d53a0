"""What people train, written as they write it: each takes ``compile`` and gives what is to be compared."""

from __future__ import annotations

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def mlp(*widths):
    layers = []
    for width, following in itertools.pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@program
def variational_autoencoder(compile):
    encoder, decoder = mlp(20, 32, 8), mlp(4, 32, 20)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.01)

    def loss_of(x, noise):
        mean, log_variance = encoder(x).chunk(2, -1)
        again = decoder(mean + noise * torch.exp(0.5 * log_variance))
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return F.mse_loss(again, x, reduction="mean") + 0.01 * divergence

    compiled, losses = compile(loss_of), []
    for step in range(4):
        loss = compiled(randn(8, 20, seed=step), randn(8, 4, seed=step + 9))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@program
def adversarial_step(compile):
    generator, discriminator = nn.Linear(4, 6), nn.Linear(6, 1)
    of_generator = torch.optim.Adam(generator.parameters())
    of_discriminator = torch.optim.Adam(discriminator.parameters())
    make, judge, losses = compile(generator), compile(discriminator), []
    for step in range(3):
        fake = make(randn(5, 4, seed=step))
        loss = F.softplus(judge(fake.detach())).mean()
        loss = loss + F.softplus(-judge(randn(5, 6, seed=9))).mean()
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()
        fooling = F.softplus(-judge(fake)).mean()
        of_generator.zero_grad()
        fooling.backward()
        of_generator.step()
        losses += [loss.detach(), fooling.detach()]
    return losses


@program
def gradient_penalty(compile):
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def penalty(real, fake, mix):
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        return ((slope.norm(2, -1) - 1) ** 2).mean()

    compiled, found = compile(penalty), []
    for step in range(2):
        loss = compiled(randn(3, 4, seed=step), randn(3, 4, seed=5), torch.full((3, 1), 0.3))
        loss.backward()
        found.append(loss.detach())
    return found, [g for g in gradients(critic) if g is not None]


@program
def exponential_moving_average(compile):
    model = nn.Linear(4, 4)
    average = copy.deepcopy(model)

    @compile
    @torch.no_grad()
    def update(decay):
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.mul_(decay).add_(new, alpha=1 - decay)

    for step in range(3):
        with torch.no_grad():
            model.weight.add_(1.0)
        update(0.9 + 0.01 * step)
    return [p.detach().clone() for p in average.parameters()]


@program
def contrastive_loss(compile):
    tower = mlp(6, 8, 4)

    @compile
    def loss_of(left, right, temperature):
        a, b = F.normalize(tower(left), dim=-1), F.normalize(tower(right), dim=-1)
        scores = a @ b.t() / temperature
        labels = torch.arange(len(scores))
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.t(), labels)) / 2

    losses = []
    for step, temperature in enumerate((0.5, 0.4, 0.3)):
        loss = loss_of(randn(5, 6, seed=step), randn(5, 6, seed=step + 3), temperature)
        loss.backward()
        losses.append(loss.detach())
    return losses, gradients(tower)


@program
def triplets_in_a_batch(compile):
    @compile
    def loss_of(embeddings, labels, margin=0.2):
        distances = torch.cdist(embeddings, embeddings)
        same = labels[:, None] == labels[None, :]
        hardest_positive = (distances * same).amax(1)
        hardest_negative = distances.masked_fill(same, math.inf).amin(1)
        return F.relu(hardest_positive - hardest_negative + margin).mean()

    x = randn(6, 3).requires_grad_()
    loss = loss_of(x, torch.tensor([0, 0, 1, 1, 2, 2]))
    loss.backward()
    return loss.detach(), x.grad


@program
def mixup(compile):
    model = mlp(6, 12, 3)

    @compile
    def loss_of(x, y, share, order):
        mixed = share * x + (1 - share) * x[order]
        logits = model(mixed)
        return share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])

    found = []
    for step, share in enumerate((0.2, 0.7, 0.9)):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(step))
        loss = loss_of(randn(6, 6, seed=step), torch.arange(6) % 3, share, order)
        loss.backward()
        found.append(loss.detach())
    return found, gradients(model)


@program
def focal_loss(compile):
    class FocalLoss(nn.Module):
        def __init__(self, gamma=2.0, alpha=0.25, reduction="mean"):
            super().__init__()
            self.gamma, self.alpha, self.reduction = gamma, alpha, reduction

        def forward(self, logits, targets):
            plain = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
            probability = torch.exp(-plain)
            loss = self.alpha * (1 - probability) ** self.gamma * plain
            if self.reduction == "mean":
                return loss.mean()
            return loss.sum() if self.reduction == "sum" else loss

    found = []
    for reduction in ("mean", "sum", "none"):
        logits = randn(4, 3).requires_grad_()
        loss = compile(FocalLoss(reduction=reduction))(logits, (randn(4, 3, seed=1) > 0).float())
        loss.sum().backward()
        found += [loss.detach(), logits.grad]
    return found


@program
def dice_and_cross_entropy(compile):
    @compile
    def loss_of(logits, target, smooth=1.0):
        probabilities = logits.softmax(1)
        hot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).float()
        overlap = (probabilities * hot).sum((2, 3))
        size = probabilities.sum((2, 3)) + hot.sum((2, 3))
        dice = 1 - ((2 * overlap + smooth) / (size + smooth)).mean()
        return dice + F.cross_entropy(logits, target)

    logits = randn(2, 3, 4, 4).requires_grad_()
    loss = loss_of(logits, torch.arange(32).view(2, 4, 4) % 3)
    loss.backward()
    return loss.detach(), logits.grad


@program
def distillation(compile):
    teacher, student = mlp(6, 12, 4), mlp(6, 4)

    @compile
    def loss_of(x, y, temperature, share):
        with torch.no_grad():
            goal = F.softmax(teacher(x) / temperature, -1)
        logits = student(x)
        soft = F.kl_div(F.log_softmax(logits / temperature, -1), goal, reduction="batchmean")
        return share * soft * temperature**2 + (1 - share) * F.cross_entropy(logits, y)

    loss = loss_of(randn(5, 6), torch.arange(5) % 4, 2.0, 0.5)
    loss.backward()
    return loss.detach(), gradients(student), gradients(teacher)


@program
def conditional_random_field(compile):
    transitions = nn.Parameter(randn(4, 4, seed=3))

    @compile
    def loss_of(emissions, tags):
        score = emissions[0, torch.arange(emissions.shape[1]), tags[0]]
        forward = emissions[0]
        for step in range(1, emissions.shape[0]):
            score = score + transitions[tags[step - 1], tags[step]]
            score = score + emissions[step].gather(1, tags[step, :, None])[:, 0]
            forward = torch.logsumexp(forward[:, :, None] + transitions, 1) + emissions[step]
        return (torch.logsumexp(forward, 1) - score).mean()

    emissions = randn(5, 3, 4).requires_grad_()
    loss = loss_of(emissions, torch.arange(15).view(5, 3) % 4)
    loss.backward()
    return loss.detach(), emissions.grad, transitions.grad


@program
def policy_gradient(compile):
    network = nn.Linear(4, 2)

    @compile
    def loss_of(observations, actions, returns):
        policy = torch.distributions.Categorical(logits=network(observations))
        return -(policy.log_prob(actions) * returns).mean() - 0.01 * policy.entropy().mean()

    loss = loss_of(randn(5, 4), torch.tensor([0, 1, 1, 0, 1]), randn(5, seed=1))
    loss.backward()
    return loss.detach(), network.weight.grad


@program
def clipped_policy_ratio(compile):
    @compile
    def loss_of(new, old, advantages, values, returns, clip=0.2):
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (new - old).exp()
        clipped = torch.clamp(ratio, 1 - clip, 1 + clip)
        policy = -torch.min(ratio * advantages, clipped * advantages).mean()
        fraction = ((ratio - 1).abs() > clip).float().mean().detach()
        return policy + 0.5 * F.mse_loss(values, returns), {"clipped": fraction}

    new, values = randn(6).requires_grad_(), randn(6, seed=1).requires_grad_()
    loss, info = loss_of(new, randn(6, seed=2), randn(6, seed=3), values, randn(6, seed=4))
    loss.backward()
    return loss.detach(), info, new.grad, values.grad


@program
def q_learning(compile):
    online = mlp(4, 8, 3)
    target = copy.deepcopy(online).requires_grad_(False)

    @compile
    def loss_of(state, action, reward, following, done, discount=0.99):
        chosen = online(state).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            best = online(following).argmax(1, keepdim=True)
            goal = reward + discount * (1 - done) * target(following).gather(1, best)[:, 0]
        return F.smooth_l1_loss(chosen, goal)

    done = torch.tensor([0.0, 1.0, 0.0, 0.0])
    loss = loss_of(
        randn(4, 4), torch.tensor([0, 1, 2, 0]), randn(4, seed=1), randn(4, 4, seed=2), done
    )
    loss.backward()
    return loss.detach(), gradients(online)


@program
def accumulation_with_clipping(compile):
    model = mlp(5, 8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    compiled, seen = compile(model), []
    for step in range(4):
        loss = compiled(randn(6, 5, seed=step)).square().mean() / 2
        loss.backward()
        if step % 2:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seen.append(norm.detach())
        seen.append(loss.detach())
    return seen


@program
def whole_step_with_a_scheduler(compile):
    model = mlp(6, 12, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    @compile
    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = []
    for number in range(5):
        losses.append(step(randn(8, 6, seed=number), torch.arange(8) % 3))
        scheduler.step()
    return losses, [p.detach() for p in model.parameters()]


@program
def line_search(compile):
    weight, goal = torch.zeros(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0])
    optimizer = torch.optim.LBFGS([weight], max_iter=5)

    @compile
    def loss_of():
        return ((weight - goal) ** 2).sum()

    def closure():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss

    return optimizer.step(closure).detach(), weight.detach()


@program
def normalised_weights(compile):
    spectral = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    weighted = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(spectral, nn.Tanh(), weighted)
    compiled, found = compile(model), []
    for step in range(3):
        loss = compiled(randn(3, 4, seed=step)).square().mean()
        loss.backward()
        found.append(loss.detach())
    return found, gradients(model), list(spectral.buffers())


@program
def statistics_of_batches(compile):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    compiled, found = compile(model), []
    for step in range(3):
        compiled(randn(3, 2, 5, 5, seed=step)).sum().backward()
        found.append([b.clone() for b in model.buffers()])
    model.eval()
    return found, gradients(model), compiled(randn(3, 2, 5, 5)).detach()

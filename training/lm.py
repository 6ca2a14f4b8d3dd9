"""Trains the language model: the product's own prompt of a text and a speaker, then the semantic codes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from training.codes import Heard
from training.pace import Pace
from training.progress import Progress
from training.sizes import CODEC, LM
from tts_plugin.engines.spark.prompt import Prompts
from tts_plugin.engines.spark.random_tokenizer import random_tokenizer
from tts_plugin.engines.spark.tokenizer import encoded, read_tokenizer
from tts_plugin.engines.spark.vocabulary import Vocabulary

RATE_OF_LEARNING = 1.5e-3
TOKENS = 3600  # of a batch
_NEIGHBOURS = 96  # utterances of like length that a batch is drawn from
_HELD_OUT = 200  # utterances
_OTHER_SPEAKER = 0.5  # how often the prompt's speaker is taken from another utterance
_PAIRS = 0.2  # how often two utterances are one, as when a turn goes on after its first sentence
_CHECK_EVERY = 200  # steps
_ALL_LENGTHS = 1200  # steps until all utterances are drawn
_IGNORED = -100

Row = tuple[list[int], list[int]]


class Words:
    """The tokenizer and the ids: bytes are the text tokens."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tokenizer.json"
        made = random_tokenizer(CODEC.speaker_encoder.codes, CODEC.quantizer.codebook_size, merged=False)
        made.save(str(self.path), pretty=False)
        tokenizer, added = read_tokenizer(self.path)
        self.ids = Vocabulary.read(added)
        self.begin = added["<|endoftext|>"]
        self.prompts = Prompts(self.ids, lambda text: encoded(tokenizer, text))

    def written(self, said: Sequence[Heard], globals_: Sequence[int]) -> Row:
        """The prompt, and what should follow, of utterances that are spoken as one."""
        text = " ".join(one.said.text for one in said)
        prompt = [*self.prompts.clone(text, globals_), self.ids.start_semantic]
        codes = [self.ids.semantic_first + int(code) for one in said for code in one.semantic]
        return prompt, [*codes, self.ids.eos]


class LmTraining:
    """A run of it, which can be stopped and gone on with. folder: holds lm.pt and progress."""

    def __init__(self, folder: Path, heard: list[Heard], *, device: torch.device, seed: int = 0) -> None:
        torch.manual_seed(seed)
        heard = [one for one in heard if one.said.text]
        self._dice = random.Random(seed)
        self._path = folder / "lm.pt"
        self._device = device
        self.words = Words(folder)
        self.model = Qwen2ForCausalLM(lm_config(self.words))
        nn.Module.to(self.model, device)
        self._globals = [one.globals_.tolist() for one in heard]
        shuffled = random.Random(1).sample(range(len(heard)), len(heard))
        self._heard = heard
        held_out = min(_HELD_OUT, len(heard) // 10)
        self._held_out = shuffled[:held_out]
        self._pool = sorted(shuffled[held_out:], key=lambda at: self._length(heard[at]))
        # as many rows are drawn from as speech can be: the codes, and the end
        ids = self.words.ids
        rows = [*range(ids.semantic_first, ids.semantic_first + ids.semantic_count), ids.eos]
        self._speech_rows = torch.tensor(rows, device=device)
        self._place = torch.full((ids.id_count,), _IGNORED, device=device)
        self._place[self._speech_rows] = torch.arange(len(rows), device=device)
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
        self._learner = torch.optim.AdamW(groups, RATE_OF_LEARNING, (0.9, 0.98))
        self._progress = Progress(folder / "lm.csv")
        self._pace = Pace(self._learner, RATE_OF_LEARNING, warm=150)
        if self._path.is_file():
            state = torch.load(self._path, map_location=device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self._learner.load_state_dict(state["learner"])
            self._pace.step, self._pace.spent_s = int(state["step"]), float(state["spent_s"])

    @property
    def step(self) -> int:
        """Steps made so far."""
        return self._pace.step

    @property
    def spent_s(self) -> float:
        """Computed so far."""
        return self._pace.spent_s

    def run(self, minutes: float, *, cores: int, decay: bool) -> None:
        """Train until so many minutes were computed in all, on so many cores. Short utterances come first, on
        which the alignment of text and sound is learnt soonest. decay: let the learning rate fall to nothing
        by the end."""
        for _ in self._pace.steps(minutes, cores=cores, decay=decay, save=self.save):
            share = min(1.0, 0.2 + self.step / _ALL_LENGTHS)
            told = {"loss": self._one_step(int(len(self._pool) * share))}
            if (self.step + 1) % _CHECK_EVERY == 0:
                told |= self._checked()
            self._progress.note(self.step, told)

    def save(self) -> None:
        part = self._path.with_suffix(".part")
        state = {
            "model": self.model.state_dict(),
            "learner": self._learner.state_dict(),
            "step": self.step,
            "spent_s": self.spent_s,
        }
        torch.save(state, part)
        part.replace(self._path)

    def _length(self, one: Heard) -> int:
        return len(one.said.text) + len(one.semantic)

    def _one_step(self, share: int) -> float:
        self.model.train()
        first = self._dice.randrange(max(1, share - _NEIGHBOURS))
        near = self._pool[first : first + _NEIGHBOURS]
        longest = self._length(self._heard[near[-1]]) + 40
        together = 2 if share == len(self._pool) and self._dice.random() < _PAIRS else 1
        count = min(len(near) // together, max(2, TOKENS // (together * longest)))
        chosen = self._dice.sample(near, together * count)
        loss, _ = self._loss([self._row(chosen[row::count]) for row in range(count)])
        self._learner.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._learner.step()
        return loss.item()

    def _row(self, places: Sequence[int]) -> Row:
        other = self._dice.random() < _OTHER_SPEAKER
        globals_ = self._globals[self._dice.randrange(len(self._globals)) if other else places[-1]]
        return self.words.written([self._heard[at] for at in places], globals_)

    @torch.no_grad()
    def _checked(self) -> dict[str, float]:
        self.model.train(False)
        rows = [self.words.written([self._heard[at]], self._globals[at]) for at in self._held_out[:32]]
        loss, right = self._loss(rows)
        return {"held_out": loss.item(), "right": right}

    def _loss(self, rows: list[Row]) -> tuple[Tensor, float]:
        length = max(len(prompt) + len(codes) for prompt, codes in rows)
        read = torch.full((len(rows), length), self.words.begin)
        due = torch.full((len(rows), length), _IGNORED)
        for at, (prompt, codes) in enumerate(rows):
            both = torch.tensor(prompt + codes)
            read[at, : len(both)] = both
            due[at, len(prompt) : len(both)] = self._place[both[len(prompt) :]].cpu()
        read, due = read.to(self._device), due.to(self._device)[:, 1:]
        with torch.autocast(self._device.type, torch.bfloat16):
            # rows are filled up at their end, which causal attention never looks at
            states = self.model.model(input_ids=read).last_hidden_state[:, :-1]
            wanted = due != _IGNORED
            logits = states[wanted] @ self.model.lm_head.weight[self._speech_rows].T
        loss = F.cross_entropy(logits.float(), due[wanted])
        right = (logits.argmax(-1) == due[wanted]).float().mean().item()
        return loss, right


def lm_config(words: Words) -> Qwen2Config:
    """Of spark-mini's language model, as its config.json says it too."""
    return Qwen2Config(
        vocab_size=words.ids.id_count,
        hidden_size=LM.hidden,
        intermediate_size=LM.inner,
        num_hidden_layers=LM.layers,
        num_attention_heads=LM.heads,
        num_key_value_heads=LM.shared_heads,
        max_position_embeddings=LM.positions,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=words.begin,
        eos_token_id=words.ids.eos,
    )

"""Settings: a mistake is named with its place, and an argument beats the environment beats the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tts_plugin.config import EngineSettings, ServerSettings, bundled, load_settings, prepare_for_vllm
from tts_plugin.errors import ConfigError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that ./voices is not the source tree's


def config(text: str, name: str = "c.yaml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def complaint(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(config(text), environ=environ)
    return str(caught.value)


def test_the_bundled_file_holds_exactly_the_defaults() -> None:
    settings = load_settings(environ={})
    assert settings.engine == EngineSettings()
    assert settings.server == ServerSettings()
    assert settings.url is None


def test_the_bundled_file_shows_every_setting() -> None:
    data = load_settings(environ={}).document.data
    assert data["engine"].keys() == EngineSettings.model_fields.keys()
    assert data["server"].keys() == ServerSettings.model_fields.keys()
    for part in ("hibari", "tone", "spark"):
        assert data["engine"][part].keys() == getattr(EngineSettings(), part).model_dump().keys()


def test_sections_that_are_left_out_or_empty_are_the_defaults() -> None:
    for text in ("agent: {}\n", "engine:\nserver:\n"):
        settings = load_settings(config(text), environ={})
        assert (settings.engine, settings.server) == (EngineSettings(), ServerSettings())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("engine:\n  vioce: ava\n", 'c.yaml:2: unknown key "engine.vioce"; did you mean "voice"?'),
        (
            "engine:\n  hibari:\n    gain: 3\n",
            'c.yaml:3: unknown key "engine.hibari.gain"; did you mean "gain_db"?',
        ),
        ("engine:\n  lead_s: soon\n", 'c.yaml:2: engine.lead_s should be a valid number, not "soon"'),
        ("engine:\n  lead_s: .nan\n", 'c.yaml:2: engine.lead_s should be a valid number, not ".nan"'),
        ("engine: 3\n", "c.yaml:1: engine should be an object, not 3"),
        ("engine:\n  voices: mine\n", "c.yaml:2: engine.voices should be a valid"),
        (
            "server:\n  port: 99999\n",
            "c.yaml:2: server.port should be less than or equal to 65535, not 99999",
        ),
        ("server:\n  port: '8081'\n", 'c.yaml:2: server.port should be a valid integer, not "8081"'),
        ("agent: {}\nserverr:\n  port: 1\n", 'c.yaml:2: unknown key "serverr"; did you mean "server"?'),
        ("server:\n  port: 1\n  port: 2\n", 'c.yaml:3: key "port" is already given in line 2'),
        ("", "c.yaml: is empty"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_nearest_key(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^nope\.yaml: cannot be read: No such file or directory$"):
        load_settings(Path("nope.yaml"), environ={})


def test_the_agents_sections_are_left_to_the_agent() -> None:
    settings = load_settings(config("agent:\n  anything: [goes]\nphone: 3\n"), environ={})
    assert settings.document.part("agent").data == {"anything": ["goes"]}
    assert settings.document.part("agent").line_of(("anything",)) == 2
    assert settings.document.part("engine").data == {}


def test_an_argument_beats_the_environment_which_beats_the_file_which_beats_the_default() -> None:
    path = config("engine:\n  voice: from-file\nserver:\n  port: 1\n  token: from-file\n")
    environ = {"SPARKVOICE_VOICE": "from-env", "SPARKVOICE_TOKEN": "from-env"}

    settings = load_settings(path, environ={})
    assert (settings.engine.voice, settings.server.token, settings.server.port) == (
        "from-file",
        "from-file",
        1,
    )
    settings = load_settings(path, environ=environ)
    assert (settings.engine.voice, settings.server.token, settings.server.port) == ("from-env", "from-env", 1)
    settings = load_settings(path, environ=environ, engine={"voice": "from-arg"}, server={"port": 0})
    assert (settings.engine.voice, settings.server.token, settings.server.port) == ("from-arg", "from-env", 0)
    assert settings.server.host == "127.0.0.1"


def test_a_bad_argument_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r'^arguments: unknown key "server\.prot"; did you mean "port"\?'):
        load_settings(environ={}, server={"prot": 1})


def test_a_mistake_in_the_file_is_said_even_where_the_environment_would_hide_it() -> None:
    assert complaint("server:\n  token: 3\n", SPARKVOICE_TOKEN="t").startswith("c.yaml:2: server.token")


def test_empty_variables_count_as_not_set() -> None:
    environ = dict.fromkeys(
        ("SPARKVOICE_VOICE", "SPARKVOICE_VOICES", "SPARKVOICE_TOKEN", "SPARKVOICE_URL"), " "
    )
    settings = load_settings(environ=environ)
    assert (settings.engine, settings.server, settings.url) == (EngineSettings(), ServerSettings(), None)


def test_the_url_of_a_running_server_is_for_clients_and_must_look_like_one() -> None:
    assert load_settings(environ={"SPARKVOICE_URL": "ws://box:8081"}).url == "ws://box:8081"
    with pytest.raises(ConfigError, match='SPARKVOICE_URL "box:8081" should start with ws://'):
        load_settings(environ={"SPARKVOICE_URL": "box:8081"})


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKVOICE_VOICE", "ava")
    assert load_settings().engine.voice == "ava"


def test_voice_folders_in_the_file_are_relative_to_the_file_those_in_the_environment_to_here(
    tmp_path: Path,
) -> None:
    (tmp_path / "deep").mkdir()
    path = config("engine:\n  voices: [mine, /abs, ~/v]\n", "deep/c.yaml")
    assert load_settings(path, environ={}).engine.voices == (
        Path("deep/mine"),
        Path("/abs"),
        Path.home() / "v",
    )
    environ = {"SPARKVOICE_VOICES": f"a{os.pathsep}{os.pathsep}b"}
    assert load_settings(path, environ=environ).engine.voices == (Path("a"), Path("b"))


def test_the_spark_model_is_named_in_the_file_or_the_environment_which_leaves_its_neighbours_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "deep").mkdir()
    path = config("engine:\n  spark:\n    model: mine\n    dtype: bfloat16\n", "deep/c.yaml")
    assert load_settings(path, environ={}).engine.spark.model == Path("deep/mine")
    spark = load_settings(path, environ={"SPARK_TTS_MODEL": "~/other"}).engine.spark
    assert (spark.model, spark.dtype) == (Path.home() / "other", "bfloat16")
    assert load_settings(environ={"SPARK_TTS_MODEL": " "}).engine.spark.model is None


def test_half_precision_is_refused_for_spark() -> None:
    said = complaint("engine:\n  spark:\n    dtype: float16\n")
    assert said.startswith("c.yaml:3: engine.spark.dtype should be 'float32' or 'bfloat16', not \"float16\"")


def test_the_home_of_a_user_who_is_not_there_is_a_folder_that_is_not_there() -> None:
    path = config('engine:\n  voices: ["~nobody-of-that-name/v"]\n')
    assert load_settings(path, environ={}).engine.voices == (path.parent / "~nobody-of-that-name/v",)


def test_the_folder_called_voices_is_used_where_nothing_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "voices").mkdir()
    assert load_settings(environ={}).engine.voices == (Path("voices"),)
    assert load_settings(environ={"SPARKVOICE_VOICES": "a"}).engine.voices == (Path("a"),)


def test_the_token_is_not_shown_when_settings_are_printed() -> None:
    assert "secret" not in repr(load_settings(environ={"SPARKVOICE_TOKEN": "secret"}).server)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_server_needs_no_token(host: str) -> None:
    ServerSettings(host=host).require_closed_door()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "box.example"])
def test_any_other_server_does(host: str) -> None:
    with pytest.raises(ConfigError, match="SPARKVOICE_TOKEN"):
        ServerSettings(host=host).require_closed_door()
    ServerSettings(host=host, token="t").require_closed_door()


def test_the_bundled_folders_are_there() -> None:
    assert (bundled("configs") / "default.yaml").is_file()
    assert (bundled("voices") / "hibari.yaml").is_file()


def test_the_gpu_deployment_is_valid_and_has_its_language_model_in_vllm() -> None:
    spark = load_settings(Path(str(bundled("configs") / "spark-vllm.yaml")), environ={}).engine.spark
    assert (spark.lm, spark.device, spark.dtype, spark.codec_dtype) == (
        "vllm",
        "cuda",
        "bfloat16",
        "bfloat16",
    )


def test_what_vllm_takes_from_the_environment_is_set_where_the_user_has_not() -> None:
    environ = {"VLLM_LOGGING_LEVEL": "DEBUG"}
    prepare_for_vllm("cuda", environ)
    assert environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr", "stdout belongs to the engine server"
    assert environ["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environ
    prepare_for_vllm("cpu", environ)
    if hasattr(os, "sched_getaffinity"):
        cores = {int(core) for core in environ["VLLM_CPU_OMP_THREADS_BIND"].split(",")}
        assert cores == os.sched_getaffinity(0), "all of them"

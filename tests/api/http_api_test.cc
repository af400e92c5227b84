// The HTTP routes over real services, without sockets.
#include "api/http_api.h"

#include <gtest/gtest.h>

#include <set>

#include "catalog/ids.h"
#include "store/base/random.h"
#include "tests/api/api_world.h"

namespace cairn {
namespace {

class HttpApiTest : public ApiWorld {
 protected:
  void SetUp() override {
    ApiWorld::SetUp();
    org_ = NewOrganization("one");
    key_ = NewKey(org_);
  }
  std::string NewSession(const std::string& body = "{}") {
    return Ok(Http("POST", "/v1/agents/sessions", body))["id"].get<std::string>();
  }
  std::string EnvOf(const std::string& session) {
    return Ok(Http("GET", "/v1/agents/sessions/" + session))["environment"]["id"]
        .get<std::string>();
  }
  // A completed turn that published `files`; returns the Session.
  std::string SessionWithArtifacts(const std::vector<std::pair<std::string, std::string>>& files) {
    const std::string session = NewSession();
    for (const auto& [name, data] : files) Output(org_, EnvOf(session), name, data);
    const std::string turn =
        Ok(Http("POST", "/v1/agents/sessions/" + session + "/turns"))["id"].get<std::string>();
    const Json report =
        Ok(Http("POST", "/v1/agents/sessions/" + session + "/turns/" + turn + "/complete"));
    EXPECT_EQ(report["published"].size(), files.size());
    return session;
  }

  std::string org_;
};

TEST_F(HttpApiTest, HealthNeedsNoKeyEverythingElseDoes) {
  key_.clear();
  EXPECT_EQ(Http("GET", "/healthz").status, 200);
  EXPECT_EQ(Http("GET", "/readyz").status, 200);
  ready_ = false;
  EXPECT_EQ(Http("GET", "/readyz").status, 503);
  EXPECT_EQ(Http("GET", "/metrics").status, 200);
  for (const char* target : {"/v1/agents/sessions", "/v1/agents/environments",
                             "/v1/agents/sessions/x/artifacts", "/v1/nothing", "/"}) {
    EXPECT_EQ(Http("GET", target).status == 401 || std::string(target) == "/", true) << target;
  }
}

TEST_F(HttpApiTest, OnlyOneGoodKeyIsAKey) {
  const std::string good = key_;
  key_.clear();
  const std::string target = "/v1/agents/sessions";
  EXPECT_EQ(Http("GET", target, {}, {{"authorization", "Bearer " + good}}).status, 200);
  EXPECT_EQ(Http("GET", target, {}, {{"authorization", "bearer  " + good}}).status, 200);
  for (const std::string& bad :
       {std::string("Basic ") + good, good, std::string("Bearer"), std::string("Bearer "),
        "Bearer " + good + "x",
        std::string("Bearer cairn_sk_0000000000000000000000000000000000000000000")}) {
    EXPECT_EQ(Http("GET", target, {}, {{"authorization", bad}}).status, 401) << bad;
  }
  EXPECT_EQ(Http("GET", target, {},
                 {{"authorization", "Bearer " + good}, {"authorization", "Bearer " + good}})
                .status,
            401);
  const auto keys = registry_->ListApiKeys(org_);
  ASSERT_TRUE(keys);
  ASSERT_TRUE(registry_->RevokeApiKey(org_, keys->front().id()));
  EXPECT_EQ(Http("GET", target, {}, {{"authorization", "Bearer " + good}}).status, 401);
}

TEST_F(HttpApiTest, MissingForeignAndMalformedIdsAnswerWithTheSameBytes) {
  const std::string session = SessionWithArtifacts({{"a.txt", "a"}});
  const std::string env = EnvOf(session);
  const std::string artifact =
      Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"))["data"][0]["id"];
  const std::string turn =
      Ok(Http("GET", "/v1/agents/sessions/" + session + "/turns"))["data"][0]["id"];
  key_ = NewKey(NewOrganization("two"));
  const auto answer = [&](const std::string& method, const std::string& target) {
    const HttpResponse response = Http(method, target);
    std::string text = std::to_string(response.status) + " " + response.body;
    for (const auto& [name, value] : response.headers) text += "|" + name + "=" + value;
    return text;
  };
  std::set<std::string> answers;
  for (const std::string& s :
       {session, NewId(kSessionPrefix), std::string("sess_1"),
        std::string("..%2f..%2fetc%2fpasswd"), std::string("%ff"), std::string(4000, 'a')}) {
    const std::string base = "/v1/agents/sessions/" + s;
    answers.insert(answer("GET", base));
    answers.insert(answer("DELETE", base));
    answers.insert(answer("GET", base + "/artifacts"));
    answers.insert(answer("GET", base + "/artifacts/" + artifact));
    answers.insert(answer("GET", base + "/artifacts/" + artifact + "/content"));
    answers.insert(answer("DELETE", base + "/artifacts/" + artifact));
    answers.insert(answer("GET", base + "/turns"));
    answers.insert(answer("POST", base + "/turns"));
    answers.insert(answer("GET", base + "/turns/" + turn));
    for (const char* verb : {"/complete", "/fail", "/cancel"})
      answers.insert(answer("POST", base + "/turns/" + turn + verb));
  }
  for (const std::string& e : {env, NewId(kEnvironmentPrefix), std::string("..")}) {
    answers.insert(answer("GET", "/v1/agents/environments/" + e));
    answers.insert(answer("DELETE", "/v1/agents/environments/" + e + "?confirm=" + e));
  }
  EXPECT_EQ(answers.size(), 1u) << ::testing::PrintToString(answers);
  EXPECT_TRUE(answers.begin()->starts_with("404 "));
  const HttpResponse attach =
      Http("POST", "/v1/agents/sessions", "{\"environment\":\"" + env + "\"}");
  EXPECT_EQ(attach.status, 404);
}

TEST_F(HttpApiTest, ATurnAndAnArtifactBelongToTheirOwnSession) {
  const std::string session = SessionWithArtifacts({{"a.txt", "a"}});
  const std::string other = NewSession();
  const std::string artifact =
      Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"))["data"][0]["id"];
  const std::string turn =
      Ok(Http("GET", "/v1/agents/sessions/" + session + "/turns"))["data"][0]["id"];
  EXPECT_EQ(Http("GET", "/v1/agents/sessions/" + other + "/artifacts/" + artifact).status, 404);
  EXPECT_EQ(
      Http("GET", "/v1/agents/sessions/" + other + "/artifacts/" + artifact + "/content").status,
      404);
  EXPECT_EQ(Http("DELETE", "/v1/agents/sessions/" + other + "/artifacts/" + artifact).status, 404);
  EXPECT_EQ(Http("GET", "/v1/agents/sessions/" + other + "/turns/" + turn).status, 404);
  EXPECT_EQ(Http("POST", "/v1/agents/sessions/" + other + "/turns/" + turn + "/cancel").status,
            404);
  EXPECT_EQ(Http("GET", "/v1/agents/sessions/" + session + "/artifacts/" + artifact).status, 200);
}

TEST_F(HttpApiTest, ArtifactHasTheFieldsThatTheSdkReads) {
  const std::string session = SessionWithArtifacts({{"a.txt", "hello"}});
  const Json list = Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"));
  EXPECT_EQ(list["object"], "list");
  const Json& artifact = list["data"][0];
  EXPECT_EQ(artifact["object"], "agent.session.artifact");
  EXPECT_EQ(artifact["path"], "/workspace/outputs/a.txt");
  EXPECT_EQ(artifact["session_id"], session);
  EXPECT_EQ(artifact["size_bytes"], 5);
  EXPECT_TRUE(artifact["created_at"].is_number_integer());
  EXPECT_TRUE(artifact["turn_id"].get<std::string>().starts_with("turn_"));
  EXPECT_EQ(artifact["environment_id"], EnvOf(session));
  EXPECT_EQ(list["first_id"], artifact["id"]);
  EXPECT_EQ(list["last_id"], artifact["id"]);
  EXPECT_EQ(list["has_more"], false);
}

TEST_F(HttpApiTest, PagesOfArtifactsAreCompleteInBothOrders) {
  std::vector<std::pair<std::string, std::string>> files;
  for (int i = 0; i < 7; ++i) files.emplace_back("f" + std::to_string(i), "x");
  const std::string base = "/v1/agents/sessions/" + SessionWithArtifacts(files) + "/artifacts";
  std::vector<std::string> ascending, descending;
  for (const bool up : {true, false}) {
    std::string after;
    for (int pages = 0; pages < 10; ++pages) {
      const Json page = Ok(Http("GET", base + "?limit=3&order=" + (up ? "asc" : "desc") +
                                           (after.empty() ? "" : "&after=" + after)));
      for (const Json& item : page["data"]) (up ? ascending : descending).push_back(item["id"]);
      if (!page["has_more"].get<bool>()) break;
      after = page["last_id"];
    }
  }
  EXPECT_EQ(ascending.size(), 7u);
  EXPECT_EQ(std::set<std::string>(ascending.begin(), ascending.end()).size(), 7u);
  std::reverse(descending.begin(), descending.end());
  EXPECT_EQ(ascending, descending);
  EXPECT_EQ(Ok(Http("GET", base + "?environment_id=env_x"))["data"].size(), 0u);
  for (const char* bad :
       {"?limit=0", "?limit=101", "?order=x", "?after=art_none", "?x=1", "?limit=1&limit=2"})
    EXPECT_EQ(Http("GET", base + bad).status, 400) << bad;
}

TEST_F(HttpApiTest, ContentWholeRangedConditionalAndHead) {
  const std::string data = SeededRandom(3).Bytes(200000);
  const std::string session = SessionWithArtifacts({{"data.bin", data}});
  const std::string artifact =
      Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"))["data"][0]["id"];
  const std::string target =
      "/v1/agents/sessions/" + session + "/artifacts/" + artifact + "/content";
  HttpResponse whole = Http("GET", target);
  EXPECT_EQ(whole.status, 200);
  EXPECT_EQ(whole.content_length, data.size());
  EXPECT_EQ(ContentOf(whole), data);
  EXPECT_EQ(HeaderOf(whole, "ETag"), "\"" + artifact + "\"");
  EXPECT_EQ(HeaderOf(whole, "X-Content-Type-Options"), "nosniff");
  EXPECT_EQ(HeaderOf(whole, "Content-Type"), "application/octet-stream");
  EXPECT_TRUE(
      HeaderOf(whole, "Content-Disposition").starts_with("attachment; filename=\"data.bin\""));
  HttpResponse part = Http("GET", target, {}, {{"range", "bytes=70000-149999"}});
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(HeaderOf(part, "Content-Range"), "bytes 70000-149999/200000");
  EXPECT_EQ(ContentOf(part), data.substr(70000, 80000));
  HttpResponse beyond = Http("GET", target, {}, {{"range", "bytes=200000-"}});
  EXPECT_EQ(beyond.status, 416);
  EXPECT_EQ(HeaderOf(beyond, "Content-Range"), "bytes */200000");
  HttpResponse same = Http("GET", target, {}, {{"if-none-match", "\"" + artifact + "\""}});
  EXPECT_EQ(same.status, 304);
  EXPECT_EQ(same.content, nullptr);
  HttpResponse head = Http("HEAD", target, {}, {{"range", "bytes=0-0"}});
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.content_length, data.size());
}

TEST_F(HttpApiTest, DownloadOutlivesLaterWritesAndTheDeletedArtifact) {
  const std::string session = SessionWithArtifacts({{"a.txt", "first"}});
  const std::string artifact =
      Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"))["data"][0]["id"];
  const std::string target = "/v1/agents/sessions/" + session + "/artifacts/" + artifact;
  Output(org_, EnvOf(session), "a.txt", "second");
  HttpResponse open = Http("GET", target + "/content");
  const Json deleted = Ok(Http("DELETE", target));
  EXPECT_EQ(deleted["object"], "agent.session.artifact.deleted");
  EXPECT_EQ(deleted["deleted"], true);
  EXPECT_EQ(ContentOf(open), "first");
  EXPECT_EQ(Http("GET", target).status, 404);
  EXPECT_EQ(Http("GET", target + "/content").status, 404);
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"))["data"].size(), 0u);
}

TEST_F(HttpApiTest, FailedAndCancelledTurnsPublishNothing) {
  for (const char* verb : {"fail", "cancel"}) {
    const std::string session = NewSession();
    Output(org_, EnvOf(session), "a.txt", "a");
    const std::string turns = "/v1/agents/sessions/" + session + "/turns";
    const std::string turn = Ok(Http("POST", turns))["id"];
    EXPECT_EQ(CodeOf(Http("POST", turns)), "turn_in_progress");
    const Json ended = Ok(Http("POST", turns + "/" + turn + "/" + verb));
    EXPECT_EQ(ended["status"], std::string(verb) == "fail" ? "failed" : "cancelled");
    EXPECT_EQ(Ok(Http("GET", "/v1/agents/sessions/" + session + "/artifacts"))["data"].size(), 0u);
    const HttpResponse late = Http("POST", turns + "/" + turn + "/complete");
    EXPECT_EQ(late.status, 409);
    EXPECT_EQ(CodeOf(late), "turn_already_ended");
  }
}

TEST_F(HttpApiTest, EnvironmentInUseNamesTheSessionsThenGoesWithConfirmation) {
  const std::string env = Ok(Http("POST", "/v1/agents/environments", R"({"name":"e"})"))["id"];
  const std::string target = "/v1/agents/environments/" + env;
  const std::string a = NewSession("{\"environment\":\"" + env + "\"}");
  const std::string b =
      NewSession(R"({"environment":{"type":"openai_hosted","environment_id":")" + env + "\"}}");
  EXPECT_EQ(Ok(Http("GET", target))["lifetime"], "shared");
  EXPECT_EQ(Ok(Http("GET", target))["session_ids"].size(), 2u);
  EXPECT_EQ(Http("DELETE", target).status, 400);
  EXPECT_EQ(Http("DELETE", target + "?confirm=env_x").status, 400);
  const HttpResponse refused = Http("DELETE", target + "?confirm=" + env);
  EXPECT_EQ(refused.status, 409);
  const Json error = Json::parse(refused.body)["error"];
  EXPECT_EQ(error["code"], "environment_in_use");
  const std::vector<std::string> blocking = error["blocking_ids"];
  EXPECT_EQ(std::set<std::string>(blocking.begin(), blocking.end()), (std::set<std::string>{a, b}));
  Ok(Http("DELETE", "/v1/agents/sessions/" + a));
  Ok(Http("DELETE", "/v1/agents/sessions/" + b));
  EXPECT_EQ(Http("GET", target).status, 200);
  const HttpResponse gone = Http("DELETE", target + "?confirm=" + env);
  EXPECT_EQ(gone.status, 200);
  EXPECT_EQ(Http("DELETE", target + "?confirm=" + env).body, gone.body);
  EXPECT_EQ(Http("GET", target).status, 404);
}

TEST_F(HttpApiTest, EnvironmentsStartFromABaseImage) {
  auto image = registry_->BeginBaseImage("tools");
  ASSERT_TRUE(image);
  image->set_root(std::string(40, 'r'));
  image->set_bytes(1000);
  image->set_complete(true);
  ASSERT_TRUE(registry_->UpdateBaseImage(*image));
  const std::string environments = "/v1/agents/environments";
  EXPECT_EQ(Ok(Http("POST", environments, R"({"base":"tools"})"))["base"], "tools");
  EXPECT_TRUE(Ok(Http("POST", environments, R"({"name":"e"})"))["base"].is_null());
  EXPECT_EQ(Http("POST", environments, R"({"base":"others"})").status, 404);
  EXPECT_EQ(Http("POST", environments, R"({"base":"tools","quota_bytes":1000})").status, 400);
  const Json session =
      Ok(Http("POST", "/v1/agents/sessions", R"({"environment":{"base":"tools"}})"));
  const std::string own = session["environment"]["id"];
  EXPECT_EQ(Ok(Http("GET", environments + "/" + own))["base"], "tools");
}

TEST_F(HttpApiTest, SessionsOwnEnvironmentGoesWithIt) {
  const std::string session = NewSession(
      R"({"metadata":{"k":"v"},"environment":{"type":"openai_hosted","workspace_uid":1000}})");
  const Json shown = Ok(Http("GET", "/v1/agents/sessions/" + session));
  EXPECT_EQ(shown["object"], "agent.session");
  EXPECT_EQ(shown["metadata"]["k"], "v");
  EXPECT_EQ(shown["status"], "idle");
  const std::string env = EnvOf(session);
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/environments/" + env))["status"], "pending");
  EXPECT_EQ(Ok(Http("DELETE", "/v1/agents/sessions/" + session))["object"],
            "agent.session.deleted");
  EXPECT_EQ(Http("GET", "/v1/agents/sessions/" + session).status, 404);
  EXPECT_EQ(Http("GET", "/v1/agents/environments/" + env).status, 404);
}

TEST_F(HttpApiTest, WrongFieldsAreNamed) {
  const std::tuple<const char*, const char*, const char*> table[] = {
      {"/v1/agents/sessions", R"({"colour":1})", "colour"},
      {"/v1/agents/sessions", R"({"environment":{"type":"openai_hosted","colour":1}})",
       "environment.colour"},
      {"/v1/agents/sessions", R"({"environment":{"type":"self_hosted"}})", "environment.type"},
      {"/v1/agents/sessions", R"({"environment":{"environment_id":"env_1","name":"x"}})",
       "environment.name"},
      {"/v1/agents/sessions", R"({"environment":7})", "environment"},
      {"/v1/agents/sessions", R"({"metadata":{"a":1}})", "metadata"},
      {"/v1/agents/environments", R"({"name":7})", "name"},
      {"/v1/agents/environments", R"({"quota_bytes":-1})", "quota_bytes"},
      {"/v1/agents/environments", R"({"quota_bytes":1.5})", "quota_bytes"},
      {"/v1/agents/environments", R"({"workspace_uid":4294967295})", "workspace_uid"},
      {"/v1/agents/environments", R"({"environment":{"type":"openai_hosted"},"vault_ids":[]})",
       "vault_ids"},
  };
  for (const auto& [target, body, param] : table) {
    const HttpResponse response = Http("POST", target, body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(Json::parse(response.body)["error"]["param"], param) << body;
  }
  for (const char* body : {"{", "[]", "7", "\xff", "{\"a\":}"})
    EXPECT_EQ(Http("POST", "/v1/agents/sessions", body).status, 400) << body;
  EXPECT_EQ(Http("POST", "/v1/agents/sessions", std::string(500000, '[')).status, 400);
  EXPECT_EQ(Http("POST", "/v1/agents/sessions", "a=b",
                 {{"content-type", "application/x-www-form-urlencoded"}})
                .status,
            415);
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/sessions"))["data"].size(), 0u);
}

TEST_F(HttpApiTest, IdempotencyKeyGivesTheSameObjectOrRefuses) {
  const HttpHeaders headers = {{"idempotency-key", "k1"}};
  const HttpResponse first = Http("POST", "/v1/agents/environments", R"({"name":"a"})", headers);
  const HttpResponse again = Http("POST", "/v1/agents/environments", R"({"name":"a"})", headers);
  EXPECT_EQ(first.status, 201);
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(first.body, again.body);
  const HttpResponse other = Http("POST", "/v1/agents/environments", R"({"name":"b"})", headers);
  EXPECT_EQ(other.status, 409);
  EXPECT_EQ(CodeOf(other), "idempotency_conflict");
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/environments"))["data"].size(), 1u);
}

TEST_F(HttpApiTest, WrongMethodsAndUrls) {
  const HttpResponse wrong = Http("PUT", "/v1/agents/sessions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(HeaderOf(wrong, "Allow"), "GET, HEAD, POST");
  EXPECT_EQ(CodeOf(Http("GET", "/v1/agents")), "unknown_url");
  EXPECT_EQ(Http("GET", "/v1/agents/sessions/").status, 400);
  EXPECT_EQ(Http("GET", "*").status, 400);
}

TEST_F(HttpApiTest, ListsOfSessionsHaveTheirOrganizationOnly) {
  const std::string mine = NewSession();
  const std::string first_key = key_;
  key_ = NewKey(NewOrganization("two"));
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/sessions"))["data"].size(), 0u);
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/environments"))["data"].size(), 0u);
  key_ = first_key;
  EXPECT_EQ(Ok(Http("GET", "/v1/agents/sessions"))["data"][0]["id"], mine);
}

}  // namespace
}  // namespace cairn

// The C interface, baton/testing.h, on top of ServiceRun and a peer.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/status.h"
#include "tests/kit/include/baton/testing.h"
#include "tests/kit/service_run.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/guide/line_client.h"
#include "worker/kit/status_code.h"

namespace {

using baton::guide::LineClient;
using baton::testing_kit::RunOptions;
using baton::testing_kit::ServiceRun;

// Where the packages put them.
constexpr char kLibexec[] = "/usr/libexec/baton";
constexpr char kHooks[] = "/usr/libexec/baton/testing";

thread_local std::string last_error;

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  last_error = std::string(status.message());
  return baton::CodeOf(status.code());
}

std::string Variable(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// `words` end with a null pointer. Null: no words.
std::vector<std::string> WordsOf(const char* const* words) {
  std::vector<std::string> all;
  for (; words != nullptr && *words != nullptr; ++words) all.emplace_back(*words);
  return all;
}

absl::StatusOr<std::unique_ptr<LineClient>> Connect(uint16_t port) {
  BATON_ASSIGN_OR_RETURN(auto device, baton::examples::OpenDevice("soft"));
  return LineClient::Connect(std::move(device), {"127.0.0.1", port}, baton::testing_kit::kPatience);
}

}  // namespace

struct baton_test {
  std::unique_ptr<ServiceRun> run;
  std::string logs;
};

struct baton_test_peer {
  std::unique_ptr<LineClient> client;
  std::string message;
};

const char* baton_test_error(void) { return last_error.c_str(); }

int baton_test_start(const struct baton_test_options* options, struct baton_test** test) {
  *test = nullptr;
  if (options == nullptr || options->size < sizeof(options->size)) {
    return Report(absl::InvalidArgumentError("options: begin with BATON_TEST_OPTIONS_INIT"));
  }
  // The caller may have the header of another release, whose structure is shorter or longer.
  baton_test_options known = BATON_TEST_OPTIONS_INIT;
  std::memcpy(&known, options, std::min(options->size, sizeof(known)));
  RunOptions given;
  given.installation = {Variable("BATON_BIN", kLibexec),
                        Variable("BATON_TESTING_LIBRARIES", kHooks)};
  given.worker = WordsOf(known.worker);
  given.service = known.service != nullptr ? known.service : "";
  given.crash_at = known.crash_at != nullptr ? known.crash_at : "";
  given.native = known.native;
  given.batond = WordsOf(known.batond);
  absl::StatusOr<std::unique_ptr<ServiceRun>> run = ServiceRun::Start(std::move(given));
  if (!run.ok()) return Report(run.status());
  *test = new baton_test{*std::move(run), {}};
  return 0;
}

void baton_test_end(struct baton_test* test) { delete test; }

int baton_test_kill_owner(struct baton_test* test) {
  const int code = baton_test_kill_owner_after(test, 0);
  return code != 0 ? code : baton_test_settle(test);
}
int baton_test_kill_owner_after(struct baton_test* test, uint64_t microseconds) {
  return Report(test->run->KillOwnerAfter(microseconds));
}
int baton_test_settle(struct baton_test* test) { return Report(test->run->Settle()); }
int baton_test_hand_off(struct baton_test* test) { return Report(test->run->HandOff()); }

int baton_test_upgrade(struct baton_test* test, const char* const* worker) {
  return Report(test->run->Upgrade(WordsOf(worker)));
}

int baton_test_crashed(struct baton_test* test, int* crashed) {
  const absl::StatusOr<bool> has_crashed = test->run->Crashed();
  if (has_crashed.ok()) *crashed = *has_crashed ? 1 : 0;
  return Report(has_crashed.status());
}

const char* baton_test_logs(struct baton_test* test) {
  test->logs = test->run->Logs();
  return test->logs.c_str();
}

int baton_test_connect(struct baton_test* test, struct baton_test_peer** peer) {
  *peer = nullptr;
  absl::StatusOr<std::unique_ptr<LineClient>> client = Connect(test->run->port());
  if (!client.ok()) return Report(client.status());
  *peer = new baton_test_peer{*std::move(client), {}};
  return 0;
}

void baton_test_disconnect(struct baton_test_peer* peer) { delete peer; }

int baton_test_send(struct baton_test_peer* peer, const void* data, size_t length) {
  return Report(peer->client->Send(std::string_view(static_cast<const char*>(data), length)));
}

int baton_test_receive(struct baton_test_peer* peer, const void** message, size_t* length) {
  absl::StatusOr<std::string> line = peer->client->Receive();
  if (!line.ok()) return Report(line.status());
  peer->message = *std::move(line);
  *message = peer->message.data();
  *length = peer->message.size();
  return 0;
}

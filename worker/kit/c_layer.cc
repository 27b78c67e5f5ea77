#include "worker/kit/c_layer.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "worker/held_files.h"
#include "worker/kit/status_code.h"

namespace baton::kit {
namespace {

static_assert(BATON_FATAL_ERROR == static_cast<int>(verbs::CompletionStatus::kFatalError));
static_assert(BATON_CONNECT_FAILED == static_cast<int>(Completion::Kind::kConnectFailed));

thread_local std::string last_error;

}  // namespace

const char* LastError() { return last_error.c_str(); }

int Report(const absl::Status& status) {
  if (status.ok()) return BATON_OK;
  last_error = std::string(MessageOf(status));
  return CodeOf(status.code());
}

int Wrong(const char* field, const char* why) {
  return Report(absl::InvalidArgumentError(absl::StrCat(field, ": ", why)));
}

baton_completion ToC(const Completion& done) {
  return {
      sizeof(baton_completion),
      static_cast<baton_kind>(done.kind),
      static_cast<baton_completion_status>(done.status),
      done.has_immediate,
      done.has_invalidate,
      done.byte_len,
      done.immediate,
      done.sequence,
      done.tag,
      Handle(done.connection),
      done.opcode == verbs::CompletionOpcode::kReceiveWithImmediate,
  };
}

// The opcode of a send is not known, and no function of the interface needs it.
Completion FromC(const baton_completion& given) {
  Completion done;
  done.kind = static_cast<Completion::Kind>(given.kind);
  done.status = static_cast<verbs::CompletionStatus>(given.status);
  done.opcode = given.is_write ? verbs::CompletionOpcode::kReceiveWithImmediate
                               : verbs::CompletionOpcode::kReceive;
  done.has_immediate = given.has_immediate;
  done.has_invalidate = given.has_invalidate;
  done.byte_len = given.byte_len;
  done.immediate = given.immediate;
  done.sequence = given.sequence;
  done.tag = given.tag;
  done.connection = Of(given.connection);
  return done;
}

absl::Status CheckHeap(Shard& shard) {
  if (shard.worker().capacity().shard_heap_bytes != 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the service has no heaps: set shard_heap_bytes in its configuration");
}

absl::Status Application::OnAdopt(Shard& shard) {
  const int result =
      service_.on_adopt == nullptr ? 0 : service_.on_adopt(service_.context, Handle(&shard));
  if (result != 0) {
    FinishReads(shard);
    return absl::AbortedError(
        absl::StrCat("on_adopt of shard ", shard.index(), " returned ", result));
  }
  if (files.reads != nullptr) files.reads->held_files().Adopt(shard);
  return absl::OkStatus();
}

void Application::OnCompletion(Shard& shard, const Completion& done) {
  const baton_completion completion = ToC(done);
  service_.on_completion(service_.context, Handle(&shard), &completion);
}

void Application::OnRelease(Shard& shard) {
  if (service_.on_release != nullptr) service_.on_release(service_.context, Handle(&shard));
  FinishReads(shard);
}

void Application::OnLost(Shard& shard) {
  if (service_.on_lost != nullptr) service_.on_lost(service_.context, Handle(&shard));
  FinishReads(shard);
}

void Application::OnShutdown(std::string_view reason) {
  if (service_.on_shutdown == nullptr) return;
  service_.on_shutdown(service_.context, std::string(reason).c_str());
}

// No read may write into the heap when another worker has it.
void Application::FinishReads(Shard& shard) {
  if (files.reads != nullptr) files.reads->Finish(shard);
}

}  // namespace baton::kit

// Hands work requests to the provider.
#ifndef LIB_VERBS_RDMA_POSTING_H_
#define LIB_VERBS_RDMA_POSTING_H_

#include <infiniband/verbs.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/base/status.h"
#include "lib/verbs/verbs.h"

namespace baton::verbs::rdma {

// The most requests handed to the provider in one call.
inline constexpr size_t kChain = 32;

// The provider reads our lists as its own.
static_assert(sizeof(ScatterGather) == sizeof(ibv_sge));
static_assert(offsetof(ScatterGather, address) == offsetof(ibv_sge, addr));
static_assert(offsetof(ScatterGather, length) == offsetof(ibv_sge, length));
static_assert(offsetof(ScatterGather, lkey) == offsetof(ibv_sge, lkey));

inline ibv_sge* ListOf(absl::Span<const ScatterGather> sges) {
  // The provider only reads it (ibv_post_send(3)).
  return reinterpret_cast<ibv_sge*>(const_cast<ScatterGather*>(sges.data()));
}

inline void TranslateReceive(const ReceiveRequest& from, ibv_recv_wr* to) {
  *to = {from.wr_id, nullptr, ListOf(from.sges), static_cast<int>(from.sges.size())};
}

inline absl::Status CheckSges(size_t count, uint32_t limit) {
  if (count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sges: ", count, ", at most ", limit));
}

// Translates the errno of ibv_post_send, ibv_post_recv or ibv_post_srq_recv.
inline absl::Status CannotPost(int error, const char* which) {
  if (error == ENOMEM) {
    return absl::ResourceExhaustedError(absl::StrCat("the ", which, " queue is full"));
  }
  return ErrnoStatus(error, absl::StrCat("posting to the ", which, " queue"));
}

// Returns how many requests of a chain the provider took. If Soft-RoCE's doorbell is refused after
// all are in the queue, there is an error but no bad request.
template <typename Request>
size_t TakenOf(const Request* chain, const Request* bad, size_t count) {
  return bad == nullptr ? count : static_cast<size_t>(bad - chain);
}

// Posts in chains of kChain, up to the first request that `check` refuses. `translate` fills a
// request of the provider's, except its `next`, from one of ours. `post` hands a chain to the
// provider and sets how many of its requests were taken.
template <typename Theirs, typename Ours, typename Check, typename Translate, typename Post>
absl::Status PostInChains(absl::Span<const Ours> requests, size_t* posted, const Check& check,
                          const Translate& translate, const Post& post) {
  std::array<Theirs, kChain> chain;
  *posted = 0;
  while (*posted < requests.size()) {
    size_t count = 0;
    absl::Status refused;
    for (; count < kChain && *posted + count < requests.size(); ++count) {
      const Ours& request = requests[*posted + count];
      refused = check(request);
      if (!refused.ok()) break;
      translate(request, &chain[count]);
      chain[count].next = &chain[count] + 1;
    }
    if (count > 0) {
      chain[count - 1].next = nullptr;
      size_t taken = 0;
      const absl::Status status = post(chain.data(), count, &taken);
      *posted += taken;
      BATON_RETURN_IF_ERROR(status);
    }
    BATON_RETURN_IF_ERROR(refused);
  }
  return absl::OkStatus();
}

}  // namespace baton::verbs::rdma

#endif  // LIB_VERBS_RDMA_POSTING_H_

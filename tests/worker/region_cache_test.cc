#include "worker/region_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/check.h"
#include "lib/base/file_descriptor.h"

namespace baton {
namespace {

constexpr uint64_t kRegionPage = 4096;

absl::Status NotHere() { return absl::UnimplementedError("not in this test"); }

// A service's regions and descriptors, without the service.
class FakeWorker final : public Worker {
 public:
  absl::StatusOr<uint64_t> HoldDescriptor(int fd, uint64_t tag) override {
    if (held.size() >= most_held) return absl::ResourceExhaustedError("descriptors: quota");
    held[++last_number] = CopyOf(fd);
    tags[last_number] = last_tag = tag;
    return last_number;
  }
  absl::StatusOr<int> TakeDescriptor(uint64_t number) override {
    const auto found = held.find(number);
    if (found == held.end()) return absl::NotFoundError("no such descriptor");
    return CopyOf(found->second.get()).Release();
  }
  absl::Status DropDescriptor(uint64_t number) override {
    if (!drop_status.ok()) return drop_status;
    held.erase(number);
    if (late.id != 0) regions[late.id] = late;
    late = {};
    return absl::OkStatus();
  }
  absl::Status BeginHoldDescriptor(int, uint64_t,
                                   std::function<void(absl::StatusOr<uint64_t>)>) override {
    return NotHere();
  }
  absl::Status BeginDropDescriptor(uint64_t, std::function<void(absl::Status)>) override {
    return NotHere();
  }
  absl::StatusOr<Region> RegisterMemory(uint64_t descriptor, uint64_t offset, uint64_t length,
                                        uint32_t access) override {
    if (!held.contains(descriptor)) return absl::NotFoundError("no such descriptor");
    if (!register_status.ok()) return register_status;
    if (regions.size() >= most_regions) return absl::ResourceExhaustedError("64 regions exist");
    Region region;
    region.id = 1;
    while (regions.contains(region.id) || region.id == late.id) ++region.id;
    region.length = length;
    region.descriptor = descriptor;
    region.offset = offset;
    region.access = access;
    region.rkey = 100 + region.id;
    region.remote_address = uint64_t{region.id} << 32;
    ++registered;
    if (std::exchange(register_late, false)) {
      late = region;
      return absl::DeadlineExceededError("the keeper does not answer");
    }
    regions[region.id] = region;
    return region;
  }
  absl::Status UnregisterMemory(uint32_t id) override {
    if (!unregister_status.ok()) return unregister_status;
    if (std::exchange(unregister_lost, false)) {
      regions.erase(id);
      return absl::DeadlineExceededError("the keeper does not answer");
    }
    if (in_use.contains(id)) return absl::FailedPreconditionError("1 work request names it");
    return regions.erase(id) == 1 ? absl::OkStatus() : absl::NotFoundError("no such region");
  }
  std::vector<Region> Regions() const override {
    std::vector<Region> all;
    for (const auto& [id, region] : regions) all.push_back(region);
    return all;
  }

  absl::Status Ready() override { return NotHere(); }
  absl::Status TakeOver(absl::Span<const uint32_t> /*shards*/) override { return NotHere(); }
  absl::StatusOr<int> Poll() override { return NotHere(); }
  int event_fd() const override { return -1; }
  bool ArmEvent() override { return false; }
  absl::Status Watch(int /*fd*/, std::function<void()> /*callback*/) override { return NotHere(); }
  void Unwatch(int /*fd*/) override {}
  absl::Status Wait(int /*timeout_ms*/) override { return NotHere(); }
  absl::Status Run() override { return NotHere(); }
  void Stop() override {}
  void Wake() override {}
  absl::StatusOr<uint16_t> Listen(const std::string& /*host*/, uint16_t /*port*/) override {
    return NotHere();
  }
  absl::StatusOr<Connection*> Connect(Shard& /*shard*/, const std::string& /*host*/,
                                      uint16_t /*port*/, std::string_view /*private_data*/,
                                      uint64_t /*tag*/) override {
    return NotHere();
  }
  const Capacity& capacity() const override { return capacity_; }
  absl::Span<uint8_t> buffers() const override { return {}; }
  absl::StatusOr<Grant> GrantRemoteAccess(uint64_t /*offset*/, uint64_t /*length*/,
                                          uint32_t /*access*/) override {
    return NotHere();
  }
  absl::Status RevokeGrant(uint32_t /*id*/) override { return NotHere(); }
  void ReportHealth(bool /*healthy*/, std::string_view /*detail*/) override {}
  uint64_t id() const override { return 1; }
  absl::StatusOr<std::vector<uint64_t>> HeldDescriptors(uint64_t tag) override {
    std::vector<uint64_t> numbers;
    for (const auto& [number, descriptor] : held) {
      if (tags.at(number) == tag) numbers.push_back(number);
    }
    return numbers;
  }

  std::map<uint64_t, FileDescriptor> held;
  std::map<uint64_t, uint64_t> tags;  // of all that were ever held
  std::map<uint32_t, Region> regions;
  std::set<uint32_t> in_use;  // by work requests
  uint64_t last_number = 0, last_tag = 0;
  size_t most_held = 256, most_regions = 64;
  uint64_t registered = 0;
  absl::Status register_status, unregister_status, drop_status;
  bool register_late = false;    // the next registration ends after its caller has given up
  Region late;                   // such a one; a later request waits for it
  bool unregister_lost = false;  // the next answer is

 private:
  const Capacity capacity_ = {};
};

FileDescriptor MakeMemfd(uint64_t bytes) {
  FileDescriptor memfd(memfd_create("region_cache_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  BATON_CHECK(memfd && ftruncate(memfd.get(), static_cast<off_t>(bytes)) == 0);
  BATON_CHECK(fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) == 0);
  return memfd;
}

class RegionCacheTest : public ::testing::Test {
 protected:
  void Make(const RegionCache::Options& options) {
    cache_ = RegionCache::Create(worker_, options).value();
  }
  RegionCache::Lease Acquire(const FileDescriptor& memfd, uint64_t offset = 0,
                             uint64_t length = kRegionPage) {
    return cache_->Acquire(memfd.get(), offset, length).value();
  }
  absl::Status WhyNot(const FileDescriptor& memfd, uint64_t length = kRegionPage) {
    return cache_->Acquire(memfd.get(), 0, length).status();
  }
  // Every region has its descriptor, and the cache knows them all.
  void ExpectConsistent() const {
    const RegionCache::Statistics statistics = cache_->statistics();
    EXPECT_EQ(statistics.regions, worker_.regions.size());
    EXPECT_EQ(worker_.held.size(), worker_.regions.size());
    uint64_t bytes = 0;
    for (const auto& [id, region] : worker_.regions) bytes += region.length;
    EXPECT_EQ(statistics.bytes, bytes);
  }

  FakeWorker worker_;
  std::unique_ptr<RegionCache> cache_ = RegionCache::Create(worker_, {}).value();
};

TEST_F(RegionCacheTest, shouldRegisterOnce) {
  const FileDescriptor memfd = MakeMemfd(4 * kRegionPage);
  const uint32_t id = Acquire(memfd).region().id;
  const FileDescriptor copy = CopyOf(memfd.get());
  EXPECT_EQ(Acquire(copy).region().id, id);
  EXPECT_EQ(worker_.registered, 1u);
  EXPECT_EQ(cache_->statistics().hits, 1u);
  EXPECT_EQ(cache_->statistics().misses, 1u);
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldFindPartsOfWhatIsRegistered) {
  const FileDescriptor memfd = MakeMemfd(8 * kRegionPage);
  const RegionCache::Lease all = Acquire(memfd, 2 * kRegionPage, 4 * kRegionPage);
  const RegionCache::Lease part = Acquire(memfd, 3 * kRegionPage, kRegionPage);
  EXPECT_EQ(part.region().id, all.region().id);
  EXPECT_EQ(part.At(3 * kRegionPage, 7).offset, (uint64_t{part.region().id} << 48) + kRegionPage);
  EXPECT_EQ(part.At(3 * kRegionPage, 7).length, 7u);
  EXPECT_EQ(part.RemoteAddress(3 * kRegionPage), all.region().remote_address + kRegionPage);
  EXPECT_EQ(Acquire(memfd, 2 * kRegionPage, 4 * kRegionPage).region().id, all.region().id);
  EXPECT_EQ(worker_.registered, 1u);
  // These begin before it, end behind it, or lie beside it.
  EXPECT_NE(Acquire(memfd, 2 * kRegionPage - 1, 2).region().id, all.region().id);
  EXPECT_NE(Acquire(memfd, 6 * kRegionPage - 1, 2).region().id, all.region().id);
  EXPECT_NE(Acquire(memfd, 6 * kRegionPage + 1, 1).region().id, all.region().id);
  EXPECT_EQ(worker_.registered, 4u);
}

TEST_F(RegionCacheTest, shouldNotTakeAnotherFileForTheSame) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  const RegionCache::Lease lease = Acquire(first);
  EXPECT_NE(Acquire(second).region().id, lease.region().id);
}

TEST_F(RegionCacheTest, shouldPassAccessAndTagOn) {
  Make({.access = verbs::kRemoteRead, .tag = 7});
  const FileDescriptor memfd = MakeMemfd(kRegionPage);
  EXPECT_EQ(Acquire(memfd).region().access, uint32_t{verbs::kRemoteRead});
  EXPECT_EQ(worker_.last_tag, 7u);
}

TEST_F(RegionCacheTest, shouldEvictWhatWasLeasedLeastRecently) {
  Make({.most_regions = 2});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage),
                       third = MakeMemfd(kRegionPage);
  Acquire(first);
  Acquire(second);
  Acquire(first);
  Acquire(third);
  EXPECT_EQ(cache_->statistics().evictions, 1u);
  ExpectConsistent();
  Acquire(first);
  EXPECT_EQ(worker_.registered, 3u);
  Acquire(second);
  EXPECT_EQ(worker_.registered, 4u);
}

TEST_F(RegionCacheTest, shouldKeepToItsBytes) {
  Make({.most_bytes = 4 * kRegionPage});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(2 * kRegionPage),
                       third = MakeMemfd(3 * kRegionPage);
  Acquire(first);
  Acquire(second, 0, 2 * kRegionPage);
  Acquire(third, 0, 3 * kRegionPage);
  EXPECT_EQ(cache_->statistics().bytes, 3 * kRegionPage);
  EXPECT_EQ(cache_->statistics().evictions, 2u);
  ExpectConsistent();
  EXPECT_TRUE(absl::IsInvalidArgument(WhyNot(MakeMemfd(5 * kRegionPage), 5 * kRegionPage)));
  EXPECT_TRUE(absl::IsInvalidArgument(WhyNot(third, 0)));
}

TEST_F(RegionCacheTest, shouldNotEvictWhatIsLeased) {
  Make({.most_regions = 2});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage),
                       third = MakeMemfd(kRegionPage);
  RegionCache::Lease one = Acquire(first);
  RegionCache::Lease two = Acquire(second);
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNot(third)));
  ExpectConsistent();
  two = {};
  Acquire(third);
  EXPECT_EQ(Acquire(first).region().id, one.region().id);
  EXPECT_EQ(worker_.registered, 3u);
}

TEST_F(RegionCacheTest, shouldCountALeaseThatIsMovedOnce) {
  Make({.most_regions = 1});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  RegionCache::Lease lease = Acquire(first);
  RegionCache::Lease moved = std::move(lease);
  lease = std::move(moved);
  EXPECT_TRUE(lease);
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNot(second)));
  lease = {};
  EXPECT_FALSE(lease);
  EXPECT_EQ(WhyNot(second), absl::OkStatus());
}

TEST_F(RegionCacheTest, shouldPassOverWhatRequestsName) {
  Make({.most_regions = 2});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage),
                       third = MakeMemfd(kRegionPage);
  const uint32_t id = Acquire(first).region().id;
  worker_.in_use.insert(id);
  Acquire(second);
  Acquire(third);
  EXPECT_TRUE(worker_.regions.contains(id));
  // It may be named again meanwhile.
  EXPECT_EQ(Acquire(first).region().id, id);
  for (const auto& [other, region] : worker_.regions) worker_.in_use.insert(other);
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNot(second)));
  worker_.in_use.clear();
  EXPECT_EQ(WhyNot(second), absl::OkStatus());
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldMakeRoomWhereTheServiceHasNone) {
  worker_.most_regions = 2;
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage),
                       third = MakeMemfd(kRegionPage);
  Acquire(first);
  Acquire(second);
  Acquire(third);
  EXPECT_EQ(cache_->statistics().evictions, 1u);
  ExpectConsistent();
  worker_.most_held = 2;
  Acquire(first);
  EXPECT_EQ(cache_->statistics().evictions, 2u);
  ExpectConsistent();
  const RegionCache::Lease one = Acquire(first), other = Acquire(third);
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNot(second)));
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldHoldNoDescriptorOfWhatIsNotRegistered) {
  worker_.register_status = absl::InvalidArgumentError("descriptor: may change its size");
  const FileDescriptor memfd = MakeMemfd(kRegionPage);
  EXPECT_EQ(WhyNot(memfd), worker_.register_status);
  ExpectConsistent();
  worker_.register_status = absl::OkStatus();
  EXPECT_EQ(WhyNot(memfd), absl::OkStatus());
}

TEST_F(RegionCacheTest, shouldInvalidateAFile) {
  const FileDescriptor first = MakeMemfd(2 * kRegionPage), second = MakeMemfd(kRegionPage);
  Acquire(first, 0);
  Acquire(first, kRegionPage);
  Acquire(second);
  EXPECT_EQ(cache_->Invalidate(first.get()), absl::OkStatus());
  EXPECT_EQ(worker_.regions.size(), 1u);
  ExpectConsistent();
  Acquire(second);
  EXPECT_EQ(worker_.registered, 3u);
  Acquire(first);
  EXPECT_EQ(worker_.registered, 4u);
  EXPECT_EQ(cache_->InvalidateAll(), absl::OkStatus());
  EXPECT_TRUE(worker_.regions.empty());
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldUnregisterLaterWhatIsInUse) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  RegionCache::Lease lease = Acquire(first);
  const uint32_t old = lease.region().id;
  EXPECT_TRUE(absl::IsFailedPrecondition(cache_->Invalidate(first.get())));
  EXPECT_NE(Acquire(first).region().id, old);
  EXPECT_TRUE(worker_.regions.contains(old));
  lease = {};
  worker_.in_use.insert(old);
  EXPECT_TRUE(absl::IsFailedPrecondition(cache_->InvalidateAll()));
  EXPECT_TRUE(worker_.regions.contains(old));
  worker_.in_use.clear();
  Acquire(second);
  EXPECT_EQ(worker_.regions.size(), 1u);
  ExpectConsistent();
}

// The region may be gone: a request that names it would be misconduct.
TEST_F(RegionCacheTest, shouldNotReturnWhatMayBeGone) {
  Make({.most_regions = 1});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  const uint32_t id = Acquire(first).region().id;
  worker_.unregister_status = absl::DeadlineExceededError("the keeper does not answer");
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNot(second)));
  worker_.unregister_status = absl::OkStatus();
  worker_.regions.erase(id);
  Acquire(first);
  EXPECT_EQ(worker_.registered, 2u);
  ExpectConsistent();
}

// An answer was lost, and the id belongs to another worker's region by then.
TEST_F(RegionCacheTest, shouldNotUnregisterWhatOthersRegistered) {
  Make({.most_regions = 1});
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  const uint32_t id = Acquire(first).region().id;
  worker_.unregister_lost = true;
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNot(second)));
  EXPECT_FALSE(worker_.regions.contains(id));
  worker_.regions[id].id = id;
  Acquire(second);
  EXPECT_TRUE(worker_.regions.contains(id));
  EXPECT_EQ(worker_.held.size(), 1u);
  EXPECT_EQ(cache_->statistics().regions, 1u);
}

TEST_F(RegionCacheTest, shouldUnregisterWhatIsRegisteredAfterItHasGivenUp) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage),
                       third = MakeMemfd(kRegionPage);
  worker_.register_late = true;
  EXPECT_TRUE(absl::IsDeadlineExceeded(WhyNot(first)));
  // Not yet.
  worker_.drop_status = absl::DeadlineExceededError("the keeper does not answer");
  Acquire(second);
  EXPECT_EQ(cache_->statistics().regions, 2u);
  worker_.drop_status = absl::OkStatus();
  Acquire(third);
  EXPECT_EQ(worker_.regions.size(), 2u);
  ExpectConsistent();
  EXPECT_EQ(Acquire(first).region().length, kRegionPage);
  EXPECT_EQ(worker_.registered, 4u);
  ExpectConsistent();
}

// The keeper hangs when it has unregistered the region.
TEST_F(RegionCacheTest, shouldDropLaterADescriptorThatTheKeeperHasNotDropped) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  Acquire(first);
  worker_.drop_status = absl::DeadlineExceededError("the keeper does not answer");
  EXPECT_EQ(cache_->InvalidateAll(), absl::OkStatus());
  EXPECT_TRUE(worker_.regions.empty());
  EXPECT_EQ(worker_.held.size(), 1u);
  Acquire(second);  // its descriptor is not dropped yet
  EXPECT_EQ(worker_.held.size(), 2u);
  worker_.drop_status = absl::OkStatus();
  Acquire(first);
  ExpectConsistent();
}

// A successor's cache has unregistered it, and the id is one of the successor's by then. The shards
// come back.
TEST_F(RegionCacheTest, shouldForgetWhatOthersUnregistered) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  const uint32_t id = Acquire(first).region().id;
  const auto successors = RegionCache::Create(worker_, {}).value();
  ASSERT_EQ(successors->TakeOver(), absl::OkStatus());
  ASSERT_EQ(successors->InvalidateAll(), absl::OkStatus());
  ASSERT_EQ(successors->Acquire(second.get(), 0, kRegionPage).value().region().id, id);
  EXPECT_EQ(cache_->TakeOver(), absl::OkStatus());
  EXPECT_EQ(Acquire(second).region().id, id);
  EXPECT_NE(Acquire(first).region().id, id);
  ExpectConsistent();
}

// A successor takes over before the last shard has come, and this one still sends.
TEST_F(RegionCacheTest, shouldNotReturnWhatOthersUnregistered) {
  const FileDescriptor memfd = MakeMemfd(kRegionPage);
  Acquire(memfd);
  const auto successors = RegionCache::Create(worker_, {}).value();
  ASSERT_EQ(successors->TakeOver(), absl::OkStatus());
  ASSERT_EQ(successors->InvalidateAll(), absl::OkStatus());
  ASSERT_TRUE(worker_.regions.empty());
  EXPECT_TRUE(worker_.regions.contains(Acquire(memfd).region().id));
  EXPECT_EQ(worker_.registered, 2u);
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldDropWhatFormerWorkersDidNotRegister) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage);
  Acquire(first);
  ASSERT_TRUE(worker_.HoldDescriptor(second.get(), RegionCache::kTag).ok());
  Make({});
  EXPECT_EQ(cache_->TakeOver(), absl::OkStatus());
  ExpectConsistent();
  // The application drops the descriptors that it holds for itself.
  ASSERT_TRUE(worker_.HoldDescriptor(second.get(), 0).ok());
  Make({.tag = 0});
  EXPECT_EQ(cache_->TakeOver(), absl::OkStatus());
  EXPECT_EQ(worker_.held.size(), 2u);
}

TEST_F(RegionCacheTest, shouldTakeOverWhatFormerWorkersRegistered) {
  const FileDescriptor first = MakeMemfd(kRegionPage), second = MakeMemfd(kRegionPage),
                       third = MakeMemfd(kRegionPage);
  const uint32_t id = Acquire(first).region().id;
  const uint32_t lost = Acquire(second).region().id;
  worker_.held.erase(worker_.regions.at(lost).descriptor);
  Make({});
  const RegionCache::Lease ours = Acquire(third);
  EXPECT_EQ(cache_->TakeOver(), absl::OkStatus());
  EXPECT_EQ(cache_->TakeOver(), absl::OkStatus());
  EXPECT_EQ(cache_->statistics().regions, 3u);
  EXPECT_EQ(Acquire(first).region().id, id);
  EXPECT_EQ(worker_.registered, 3u);
  // Nobody knows which file that was.
  Acquire(second);
  EXPECT_EQ(worker_.registered, 4u);
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldNotUseWhatWasRegisteredWithOtherAccess) {
  const FileDescriptor memfd = MakeMemfd(kRegionPage);
  Acquire(memfd);
  Make({.access = verbs::kRemoteRead});
  EXPECT_EQ(cache_->TakeOver(), absl::OkStatus());
  EXPECT_EQ(Acquire(memfd).region().access, uint32_t{verbs::kRemoteRead});
  EXPECT_EQ(worker_.regions.size(), 1u);
  ExpectConsistent();
}

TEST_F(RegionCacheTest, shouldRefuseWrongOptions) {
  const auto refuses = [&](const RegionCache::Options& options) {
    return absl::IsInvalidArgument(RegionCache::Create(worker_, options).status());
  };
  EXPECT_TRUE(refuses({.most_bytes = 0}));
  EXPECT_TRUE(refuses({.most_regions = 0}));
  EXPECT_TRUE(refuses({.most_regions = 65}));
  EXPECT_TRUE(refuses({.access = verbs::kRemoteWrite}));
  EXPECT_FALSE(refuses({.most_regions = 64}));
  EXPECT_FALSE(cache_->Acquire(-1, 0, kRegionPage).ok());
}

}  // namespace
}  // namespace baton

// The controllers of a shard: what is saved is loaded, and nothing else is.
#include "worker/examples/nvmed/registry.h"

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/examples/nvmed/hex.h"

namespace baton::nvmed {
namespace {

using testing::HasSubstr;

constexpr uint32_t kPlaces = 3;
constexpr uint32_t kStateBytes = sizeof(RegistryHeader) + kPlaces * sizeof(ControllerState);

std::vector<uint8_t> SaveOf(Registry& registry) {
  const auto saved = registry.Save();
  return {saved.begin(), saved.end()};
}

std::vector<uint8_t> StateOf(const std::vector<ControllerState>& controllers) {
  RegistryHeader header;
  header.controllers = static_cast<uint32_t>(controllers.size());
  std::vector<uint8_t> state = ToBytes(header);
  for (const ControllerState& controller : controllers) {
    const std::vector<uint8_t> bytes = ToBytes(controller);
    state.insert(state.end(), bytes.begin(), bytes.end());
  }
  return state;
}

ControllerState Sane(uint16_t id) {
  ControllerState controller;
  controller.id = id;
  controller.granted_queues = kMaxIoQueues;
  controller.held_count = kMaxHeldEvents;
  std::strcpy(controller.host_nqn, "nqn.2014-08.org.example:host");
  std::strcpy(controller.subsystem_nqn, "nqn.2014-08.org.example:one");
  return controller;
}

void ExpectRefusal(const std::vector<uint8_t>& state, uint32_t version, const std::string& why) {
  Registry registry(kStateBytes);
  const absl::Status status = registry.Load(state, version);
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  // Nothing of it is there.
  EXPECT_EQ(SaveOf(registry), ToBytes(RegistryHeader()));
}

TEST(RegistryTest, shouldHaveAsManyPlacesAsFit) {
  EXPECT_EQ(Registry(0).controllers().size(), 0u);
  EXPECT_EQ(Registry(15).controllers().size(), 0u);
  EXPECT_EQ(Registry(sizeof(RegistryHeader)).controllers().size(), 0u);
  EXPECT_EQ(Registry(kStateBytes - 1).controllers().size(), kPlaces - 1);
  EXPECT_EQ(Registry(kStateBytes).controllers().size(), kPlaces);
  EXPECT_EQ(Registry(kStateBytes + 1).controllers().size(), kPlaces);
}

TEST(RegistryTest, shouldHaveNoMorePlacesThanIds) {
  EXPECT_EQ(
      Registry(sizeof(RegistryHeader) + 70000u * sizeof(ControllerState)).controllers().size(),
      0xffefu);
}

TEST(RegistryTest, shouldBeEmptyWhereNobodyHasBeen) {
  Registry registry(kStateBytes);
  registry.Add();
  ASSERT_TRUE(registry.Load({}, 0).ok());
  EXPECT_FALSE(registry.touched());
  for (const ControllerState& controller : registry.controllers()) EXPECT_EQ(controller.id, 0);
  EXPECT_EQ(registry.Add()->id, 1);
}

TEST(RegistryTest, shouldLoadWhatItSaved) {
  Registry registry(kStateBytes);
  for (int i = 0; i < 3; ++i) {
    ControllerState* const added = registry.Add();
    const uint16_t id = added->id;
    *added = Sane(id);
    added->reads = 100u + id;
  }
  *registry.Find(2) = ControllerState();
  registry.set_namespaces_hash(0x123456789abcdef0);
  const std::vector<uint8_t> saved = SaveOf(registry);
  EXPECT_EQ(saved.size(), kStateBytes);

  Registry successor(kStateBytes);
  ASSERT_TRUE(successor.Load(saved, kStateVersion).ok());
  EXPECT_FALSE(successor.touched());
  EXPECT_EQ(successor.namespaces_hash(), 0x123456789abcdef0u);
  EXPECT_EQ(successor.Find(2), nullptr);
  for (const uint16_t id : {1, 3}) {
    ASSERT_NE(successor.Find(id), nullptr);
    EXPECT_EQ(ToBytes(*successor.Find(id)), ToBytes(*registry.Find(id)));
  }
  EXPECT_EQ(SaveOf(successor), saved);
  EXPECT_EQ(successor.Add()->id, 4);  // not 2, which a host may still mean
}

TEST(RegistryTest, shouldSaveNoMoreThanTheLastThatIsThere) {
  Registry registry(kStateBytes);
  EXPECT_EQ(registry.Save().size(), sizeof(RegistryHeader));
  for (uint32_t i = 0; i < kPlaces; ++i) registry.Add();
  EXPECT_EQ(registry.Save().size(), kStateBytes);
  *registry.Find(3) = ControllerState();
  EXPECT_EQ(registry.Save().size(), kStateBytes - sizeof(ControllerState));
  *registry.Find(1) = ControllerState();
  EXPECT_EQ(registry.Save().size(), kStateBytes - sizeof(ControllerState));
}

TEST(RegistryTest, shouldRefuseStateThatIsNoRegistry) {
  std::vector<uint8_t> saved = StateOf({Sane(1), Sane(2)});
  ExpectRefusal(saved, 0, "state version 0, not 1");
  ExpectRefusal(saved, kStateVersion + 1, "state version 2, not 1");
  for (const size_t bytes : {size_t{1}, sizeof(RegistryHeader) - 1, sizeof(RegistryHeader),
                             saved.size() - 1, saved.size() + 1}) {
    std::vector<uint8_t> other = saved;
    other.resize(bytes);
    ExpectRefusal(other, kStateVersion, std::to_string(bytes) + " bytes of state");
  }
  ExpectRefusal(StateOf({Sane(1), Sane(2), Sane(3), Sane(4)}), kStateVersion, "for 4 controllers");
  RegistryHeader header;
  header.controllers = 0xffffffff;
  ExpectRefusal(ToBytes(header), kStateVersion, "for 4294967295 controllers");
}

TEST(RegistryTest, shouldRefuseControllersThatCouldNotBeUsed) {
  const auto refuses = [](void (*spoil)(ControllerState&), const std::string& why) {
    ControllerState controller = Sane(7);
    Registry registry(kStateBytes);
    ASSERT_TRUE(registry.Load(StateOf({ControllerState(), controller}), kStateVersion).ok());
    spoil(controller);
    ExpectRefusal(StateOf({ControllerState(), controller}), kStateVersion, why);
  };
  refuses([](ControllerState& c) { c.id = 0xfff0; }, "controller 1: id 65520");
  refuses([](ControllerState& c) { c.held_count = 5; }, "controller 1: held_count 5");
  refuses([](ControllerState& c) { c.held_count = 0xffffffff; }, "held_count 4294967295");
  refuses([](ControllerState& c) { c.granted_queues = 65; }, "controller 1: granted_queues 65");
  refuses([](ControllerState& c) { std::memset(c.host_nqn, 'x', kNqnBytes); },
          "controller 1: an NQN without end");
  refuses([](ControllerState& c) { std::memset(c.subsystem_nqn, 'x', kNqnBytes); },
          "controller 1: an NQN without end");
  ExpectRefusal(StateOf({Sane(7), Sane(8), Sane(7)}), kStateVersion, "controller id 7 twice");
}

// What was in a place that is free now is nobody's.
TEST(RegistryTest, shouldNotLookAtFreePlaces) {
  ControllerState free = Sane(0);
  free.held_count = 0xffffffff;
  Registry registry(kStateBytes);
  ASSERT_TRUE(registry.Load(StateOf({free, free, Sane(9)}), kStateVersion).ok());
  EXPECT_EQ(registry.Find(0), nullptr);
  ControllerState* const added = registry.Add();
  EXPECT_EQ(added->held_count, 0u);
}

TEST(RegistryTest, shouldGiveEachControllerAPlaceUntilAllAreTaken) {
  Registry registry(kStateBytes);
  std::set<ControllerState*> places;
  for (uint32_t i = 0; i < kPlaces; ++i) {
    ControllerState* const added = registry.Add();
    ASSERT_NE(added, nullptr);
    EXPECT_EQ(registry.Find(added->id), added);
    EXPECT_TRUE(places.insert(added).second);
  }
  EXPECT_TRUE(registry.touched());
  registry.Saved();
  EXPECT_EQ(registry.Add(), nullptr);
  EXPECT_FALSE(registry.touched());
  *registry.Find(2) = ControllerState();
  EXPECT_EQ(registry.Add(), &registry.controllers()[1]);
}

TEST(RegistryTest, shouldUseEveryIdBeforeOneIsUsedAgain) {
  Registry registry(kStateBytes);
  const uint16_t stays = registry.Add()->id;
  std::set<uint16_t> used = {stays};
  // All from 1 to FFEFh, in a row.
  for (int i = 1; i < 0xffef; ++i) {
    ControllerState* const added = registry.Add();
    ASSERT_GE(added->id, 1);
    ASSERT_LE(added->id, 0xffef);
    ASSERT_TRUE(used.insert(added->id).second) << added->id;
    *added = ControllerState();
  }
  EXPECT_EQ(registry.Add()->id, stays + 1);  // around, and past the one that is in use
}

TEST(RegistryTest, shouldGoOnFromWhicheverIdWasLast) {
  for (const int last : {0xffee, 0xffef, 0xfff0, 0xffff}) {
    RegistryHeader header;
    header.last_id = static_cast<uint16_t>(last);
    Registry registry(kStateBytes);
    ASSERT_TRUE(registry.Load(ToBytes(header), kStateVersion).ok());
    EXPECT_EQ(registry.Add()->id, last == 0xffee ? 0xffef : 1);
  }
}

// Bytes of anything: they are refused, or all that is indexed by them is within its bounds.
TEST(RegistryTest, shouldLoadNothingThatReachesBeyondItself) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int loaded = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> state = StateOf({Sane(1), Sane(2), Sane(3)});
    for (uint32_t changes = random() % 4; changes > 0; --changes) {
      // Mostly among the numbers, of which each controller has 80 bytes at its beginning.
      const size_t at = random() % 2 == 0
                            ? random() % state.size()
                            : sizeof(RegistryHeader) +
                                  random() % kPlaces * sizeof(ControllerState) + random() % 80;
      state[at] = static_cast<uint8_t>(random());
    }
    Registry registry(kStateBytes);
    if (!registry.Load(state, kStateVersion).ok()) continue;
    ++loaded;
    std::set<uint16_t> ids;
    for (const ControllerState& controller : registry.controllers()) {
      if (controller.id == 0) continue;
      ASSERT_TRUE(ids.insert(controller.id).second);
      ASSERT_LE(controller.id, 0xffef);
      ASSERT_LE(controller.held_count, kMaxHeldEvents);
      ASSERT_LE(controller.granted_queues, kMaxIoQueues);
      ASSERT_LT(strnlen(controller.host_nqn, kNqnBytes), kNqnBytes);
      ASSERT_LT(strnlen(controller.subsystem_nqn, kNqnBytes), kNqnBytes);
    }
  }
  EXPECT_GT(loaded, 1000);
  EXPECT_LT(loaded, 19900);
}

}  // namespace
}  // namespace baton::nvmed

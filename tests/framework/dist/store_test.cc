#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "framework/base/monotonic_clock.h"
#include "framework/dist/key_value_table.h"
#include "framework/dist/store_client.h"
#include "framework/dist/store_server.h"
#include "framework/dist/tcp.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/framework/dist/foreign_listener.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kSecret[] = "a secret of thirty-two characters";
constexpr absl::Duration kShort = absl::Seconds(2);
constexpr absl::Duration kLong = absl::Seconds(30);

TEST(KeyValueTableTest, Requests) {
  KeyValueTable table;
  const auto apply = [&](const Fields& request) {
    return table.Apply(request).value();
  };
  const std::string bytes("\0\n\xff", 3);
  EXPECT_THAT(apply({"get", "a"}), IsEmpty());
  EXPECT_THAT(apply({"set", "a", bytes}), IsEmpty());
  EXPECT_THAT(apply({"get", "a"}), ElementsAre(bytes));
  EXPECT_THAT(apply({"add", "n", "3"}), ElementsAre("3"));
  EXPECT_THAT(apply({"add", "n", "-5"}), ElementsAre("-2"));
  EXPECT_THAT(apply({"check", "a", "n"}), ElementsAre("1"));
  EXPECT_THAT(apply({"check", "a", "b"}), ElementsAre("0"));
  EXPECT_THAT(apply({"size"}), ElementsAre("2"));
  EXPECT_THAT(apply({"delete", "a"}), ElementsAre("1"));
  EXPECT_THAT(apply({"delete", "a"}), ElementsAre("0"));
  // A missing key is set only if the expected value is empty.
  EXPECT_THAT(apply({"compare_set", "c", "x", "y"}), ElementsAre("x"));
  EXPECT_THAT(apply({"check", "c"}), ElementsAre("0"));
  EXPECT_THAT(apply({"compare_set", "c", "", "y"}), ElementsAre("y"));
  EXPECT_THAT(apply({"compare_set", "c", "x", "z"}), ElementsAre("y"));
  EXPECT_THAT(apply({"compare_set", "c", "y", "z"}), ElementsAre("z"));
  for (const Fields& bad : std::vector<Fields>{
           {}, {"set", "a"}, {"drop", "a"}, {"add", "c", "1"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(table.Apply(bad).status()));
  }
}

TEST(FieldsTest, ArriveInPieces) {
  const Fields fields = {"", std::string("\0x", 2), std::string(1'000, 'y')};
  const std::string bytes = EncodeFields(fields) + EncodeFields({});
  std::string received;
  std::vector<Fields> taken;
  for (const char byte : bytes) {
    received.push_back(byte);
    auto some = TakeFields(received);
    ASSERT_TRUE(some.ok()) << some.status();
    if (some->has_value()) taken.push_back(**some);
  }
  EXPECT_THAT(taken, ElementsAre(fields, Fields{}));
  EXPECT_THAT(received, IsEmpty());
}

TEST(FieldsTest, DamageIsRejected) {
  for (const absl::string_view bytes :
       {absl::string_view("\xff\xff\xff\xff", 4),  // longer than allowed
        absl::string_view("\2\0\0\0xy", 6),        // no room for a size
        absl::string_view("\5\0\0\0\2\0\0\0x", 9),
        absl::string_view("\5\0\0\0\xff\xff\xff\xffx", 9)}) {
    std::string received(bytes);
    EXPECT_TRUE(absl::IsInvalidArgument(TakeFields(received).status()));
  }
}

// A server at a free port of 127.0.0.1.
class StoreTest : public testing::Test {
 protected:
  void Serve(const std::string& secret) {
    server_.reset();
    port_ = FreeLoopbackPort().value();
    server_ = std::make_unique<StoreServer>(
        ListenAt("127.0.0.1", port_).value(), secret);
  }
  absl::StatusOr<std::unique_ptr<StoreClient>> Connect(
      const std::string& secret, absl::Duration timeout = kLong) {
    return StoreClient::Connect("127.0.0.1", port_, secret,
                                MonotonicNow() + timeout);
  }
  // A connection that does not use the protocol.
  Socket Stranger() {
    return ConnectOnce("127.0.0.1", port_, MonotonicNow() + kLong).value();
  }

  int port_ = 0;
  std::unique_ptr<StoreServer> server_;
};

TEST_F(StoreTest, ServesClientsWithTheSecret) {
  for (const std::string secret : {"", kSecret}) {
    Serve(secret);
    const auto one = Connect(secret);
    const auto two = Connect(secret);
    ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
    // Larger than a socket's buffers.
    const std::string large(20 << 20, 'x');
    ASSERT_TRUE((*one)->Call({"set", "k", large}, kLong).ok());
    const auto value = (*two)->Call({"get", "k"}, kLong);
    ASSERT_TRUE(value.ok()) << value.status();
    EXPECT_TRUE(*value == Fields{large});
    EXPECT_EQ(server_->Call({"size"}).value(), Fields{"1"});
    EXPECT_EQ(server_->Refusals(), "");
    server_.reset();
    EXPECT_TRUE(absl::IsUnavailable((*one)->Call({"size"}, kLong).status()));
    EXPECT_TRUE(absl::IsUnavailable((*one)->Call({"size"}, kLong).status()));
  }
}

TEST_F(StoreTest, RejectsOtherSecretsImmediately) {
  const std::string other = "a secret of thirty-two Characters";
  struct Case {
    std::string server, client, client_says, server_says;
  };
  for (const Case& each :
       {Case{kSecret, other, "rank 0 has a different TESSERA_SECRET",
             "it has a different TESSERA_SECRET"},
        Case{kSecret, "", "rank 0 has a TESSERA_SECRET, but this rank has none",
             "it has no TESSERA_SECRET"},
        Case{"", kSecret, "rank 0 has no TESSERA_SECRET, but this rank has one",
             "it has a TESSERA_SECRET"}}) {
    Serve(each.server);
    const absl::Time start = MonotonicNow();
    const auto refused = Connect(each.client);
    EXPECT_LT(MonotonicNow() - start, absl::Seconds(3));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
    const std::string message(refused.status().message());
    EXPECT_THAT(message, HasSubstr(each.client_says));
    EXPECT_THAT(message, HasSubstr("set TESSERA_SECRET to the same text"));
    EXPECT_THAT(message, Not(HasSubstr("Characters")));
    EXPECT_THAT(server_->Refusals(), HasSubstr("1 connection was refused, "
                                               "from 127.0.0.1:"));
    EXPECT_THAT(server_->Refusals(), HasSubstr(each.server_says));
  }
}

TEST_F(StoreTest, AnUnknownClientCannotUseTheTable) {
  Serve(kSecret);
  Socket stranger = Stranger();
  // A request that a store without a secret would accept.
  ASSERT_TRUE(SendAll(stranger, EncodeFields({"set", "k", "v"}), kLong).ok());
  EXPECT_TRUE(absl::IsUnavailable(ReceiveSome(stranger, 1, kLong).status()));
  EXPECT_THAT(server_->Refusals(), HasSubstr("it is not a rank of a run"));
  // The server's own greeting, replayed, and then a guess.
  stranger = Stranger();
  const std::string protocol = "tessera-store-1\n";
  ASSERT_TRUE(
      SendAll(stranger, protocol + "1" + std::string(32, 'r'), kLong).ok());
  const auto greeting = ReceiveSome(stranger, 4096, kLong);
  ASSERT_TRUE(greeting.ok()) << greeting.status();
  ASSERT_EQ(greeting->size(), protocol.size() + 33);
  ASSERT_TRUE(SendAll(stranger,
                      std::string(32, 'g') + EncodeFields({"set", "k", "v"}),
                      kLong)
                  .ok());
  while (ReceiveSome(stranger, 4096, kLong).ok()) {
  }
  EXPECT_THAT(server_->Refusals(),
              HasSubstr("it has a different TESSERA_SECRET"));
  EXPECT_EQ(server_->Call({"size"}).value(), Fields{"0"});
}

TEST_F(StoreTest, SilentClientsDelayNobodyAndAreClosed) {
  Serve(kSecret);
  const auto rank = Connect(kSecret);
  ASSERT_TRUE(rank.ok()) << rank.status();
  std::vector<Socket> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(Stranger());
  const absl::Time start = MonotonicNow();
  const auto client = Connect(kSecret);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_LT(MonotonicNow() - start, absl::Seconds(3));
  for (const Socket& stranger : strangers) {
    EXPECT_TRUE(absl::IsUnavailable(
        ReceiveSome(stranger, 1, absl::Seconds(15)).status()));
  }
  EXPECT_THAT(server_->Refusals(), HasSubstr("300 connections were refused"));
  EXPECT_TRUE((*client)->Call({"size"}, kLong).ok());
  // Strangers make room for each other, never a rank for them.
  EXPECT_TRUE((*rank)->Call({"size"}, kLong).ok());
}

// What is left of its answer must not be taken for that of the next request.
TEST_F(StoreTest, ARequestThatTimesOutEndsTheConnection) {
  Serve("");
  const auto client = Connect("");
  ASSERT_TRUE(client.ok()) << client.status();
  // Larger than a socket's buffers, so that it does not arrive at once.
  server_->Call({"set", "k", std::string(20 << 20, 'x')}).IgnoreError();
  const auto late = (*client)->Call({"get", "k"}, absl::ZeroDuration());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.status())) << late.status();
  const auto next = (*client)->Call({"size"}, kLong);
  EXPECT_TRUE(absl::IsUnavailable(next.status())) << next.status();
}

TEST_F(StoreTest, AForeignListenerIsNamed) {
  struct Case {
    ForeignListener::Behavior behavior;
    std::string reason;
  };
  for (const Case& each :
       {Case{ForeignListener::kSilent,
             "accepts connections there but does not "
             "answer as rank 0 does"},
        Case{ForeignListener::kRubbish,
             "is not rank 0; it says 'HTTP/1.1 400 "
             "Bad Request"},
        Case{ForeignListener::kCloses, "ends them before it answers"}}) {
    for (const absl::Duration delay : {absl::ZeroDuration(), kShort / 4}) {
      const ForeignListener foreign(each.behavior, 0, delay);
      port_ = foreign.port();
      const absl::Time start = MonotonicNow();
      const auto refused = Connect(kSecret, kShort);
      EXPECT_LT(MonotonicNow() - start, kLong / 3);
      EXPECT_TRUE(absl::IsDeadlineExceeded(refused.status()));
      EXPECT_THAT(std::string(refused.status().message()),
                  HasSubstr(each.reason));
      EXPECT_THAT(std::string(refused.status().message()),
                  HasSubstr("set MASTER_PORT to a free one"));
    }
  }
}

// It speaks the protocol, but cannot compute rank 0's proof.
TEST_F(StoreTest, AnImpostorIsNotRankZero) {
  constexpr size_t kProofSize = 32;
  const std::string greeting = "tessera-store-1\n1" + std::string(32, 'r');
  const auto impersonate = [&](const Socket& listener, bool echoes) {
    pollfd ready = {.fd = listener.fd(), .events = POLLIN};
    ASSERT_EQ(::poll(&ready, 1, absl::ToInt64Milliseconds(kLong)), 1);
    const Socket client(
        ::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK));
    ASSERT_TRUE(SendAll(client, greeting, kLong).ok());
    std::string received;
    while (received.size() < greeting.size() + kProofSize) {
      const auto some = ReceiveSome(client, 4096, kLong);
      ASSERT_TRUE(some.ok()) << some.status();
      received += *some;
    }
    const std::string proof = echoes ? received.substr(greeting.size())
                                     : std::string(kProofSize, 'p');
    ASSERT_TRUE(SendAll(client, "y" + proof, kLong).ok());
    while (ReceiveSome(client, 4096, kLong).ok()) {
    }
  };
  for (const bool echoes : {false, true}) {  // the client's own proof
    SCOPED_TRACE(echoes);
    port_ = FreeLoopbackPort().value();
    const auto listeners = ListenAt("127.0.0.1", port_);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    std::thread impostor(impersonate, std::cref((*listeners)[0]), echoes);
    const absl::Status refused = Connect(kSecret).status();
    impostor.join();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("rank 0 has a different TESSERA_SECRET"));
  }
}

TEST_F(StoreTest, AStoreMayTakeThePortOfAForeignListener) {
  auto foreign = std::make_unique<ForeignListener>(ForeignListener::kCloses);
  port_ = foreign->port();
  std::thread replace([&] {
    absl::SleepFor(absl::Milliseconds(500));
    foreign.reset();
    server_ = std::make_unique<StoreServer>(
        ListenAt("127.0.0.1", port_).value(), kSecret);
  });
  const auto client = Connect(kSecret);
  replace.join();
  EXPECT_TRUE(client.ok()) << client.status();
}

TEST(TcpTest, ListensAtOneAddressOnly) {
  const int port = FreeLoopbackPort().value();
  const auto listeners = ListenAt("127.0.0.2", port);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  EXPECT_TRUE(ListensOnLoopback((*listeners)[0]));
  const absl::Time deadline = MonotonicNow() + kLong;
  EXPECT_TRUE(ConnectOnce("127.0.0.2", port, deadline).ok());
  EXPECT_FALSE(ConnectOnce("127.0.0.1", port, deadline).ok());
  EXPECT_THAT(std::string(ListenAt("127.0.0.2", port).status().message()),
              HasSubstr("Address already in use; set MASTER_PORT"));
}

TEST(TcpTest, ListensAtNamesAndEverywhere) {
  const int port = FreeLoopbackPort().value();
  const absl::Time deadline = MonotonicNow() + kLong;
  {
    const auto listeners = ListenAt("localhost", port);
    ASSERT_TRUE(listeners.ok()) << listeners.status();
    EXPECT_TRUE(ConnectOnce("localhost", port, deadline).ok());
  }
  const auto everywhere = ListenEverywhere(port);
  ASSERT_TRUE(everywhere.ok()) << everywhere.status();
  EXPECT_FALSE(ListensOnLoopback(*everywhere));
  EXPECT_TRUE(ConnectOnce("127.0.0.2", port, deadline).ok());
}

TEST(TcpTest, ListensAtIpv6) {
  const int port = FreeLoopbackPort().value();
  const auto listeners = ListenAt("::1", port);
  if (!listeners.ok()) GTEST_SKIP() << "no IPv6: " << listeners.status();
  EXPECT_TRUE(ListensOnLoopback((*listeners)[0]));
  EXPECT_TRUE(ConnectOnce("::1", port, MonotonicNow() + kLong).ok());
  EXPECT_FALSE(ConnectOnce("127.0.0.1", port, MonotonicNow() + kLong).ok());
  EXPECT_EQ(HostAndPort("::1", 7), "[::1]:7");
}

TEST(TcpTest, RejectsAnotherMachinesAddressByName) {
  const absl::Status status = ListenAt("203.0.113.77", 4000).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot listen at 203.0.113.77, which is not an "
                        "address of this machine; it has 127.0.0.1"));
}

}  // namespace
}  // namespace tessera

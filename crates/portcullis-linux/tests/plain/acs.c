/* Ports whose configuration space is a table here, and what module/acs.c makes of them. */
#include <linux/pci_regs.h>

#include "acs.h"
#include "check.h"

#define AT 0x148
#define ALL (PCI_ACS_SV | PCI_ACS_TB | PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_UF)

struct fake {
	struct acs_port port;
	u32 able, control;
	bool is_wide;		/* the registers take four bytes each */
	bool is_locked;		/* writes do nothing */
	bool is_absent;		/* reads are all ones */
	int writes;
};

static u32 control_at(const struct fake *fake)
{
	return fake->is_wide ? AT + 8 : AT + PCI_ACS_CTRL;
}

/* The bytes of the capability, from the lowest address on. */
static void bytes_of(const struct fake *fake, u8 *to)
{
	u32 at = control_at(fake) - AT;

	to[0] = PCI_EXT_CAP_ID_ACS;
	to[2] = 1;
	to[PCI_ACS_CAP] = fake->able;
	to[at] = fake->control;
}

static u32 read_fake(void *data, u32 at, u32 bytes)
{
	u8 space[12] = {};
	u32 value = 0;

	if (((struct fake *)data)->is_absent)
		return bytes == 4 ? UINT32_MAX : UINT16_MAX;
	bytes_of(data, space);
	CHECK(at >= AT && at + bytes <= AT + sizeof(space) && (bytes == 2 || bytes == 4) && at % bytes == 0);
	memcpy(&value, space + (at - AT), bytes);
	return value;
}

static void write_fake(void *data, u32 at, u32 bytes, u32 value)
{
	struct fake *fake = data;

	fake->writes++;
	CHECK(bytes == 2 || bytes == 4);
	if (!fake->is_absent && !fake->is_locked && at == control_at(fake))
		fake->control = value & fake->able;
}

/* A port of Intel's that can do everything and does nothing. */
static struct fake fake_of(enum acs_kind kind, u16 device)
{
	return (struct fake) {
		.port = { .kind = kind, .vendor = 0x8086, .device = device, .at = AT, .read = read_fake,
			  .write = write_fake },
		.able = ALL | PCI_ACS_DT,
	};
}

static bool isolates(struct fake *fake)
{
	fake->port.data = fake;
	return acs_isolates(&fake->port);
}

static bool isolate(struct fake *fake)
{
	fake->port.data = fake;
	return acs_isolate(&fake->port);
}

static enum acs_found keep(struct fake *fake)
{
	fake->port.data = fake;
	return acs_keep(&fake->port);
}

static void standard(void)
{
	struct fake root = fake_of(ACS_ROOT_PORT, 0x3420), port = fake_of(ACS_SWITCH_PORT, 0x3420);

	CHECK(!isolates(&root) && !isolates(&port) && !root.writes && !port.writes);
	CHECK(isolate(&root) && root.control == ALL);
	CHECK(isolate(&port) && port.control == ALL);
	/* A root port has to check ids. A port of a switch has to send all requests upstream besides. */
	root.control = port.control = PCI_ACS_SV | PCI_ACS_TB;
	CHECK(isolates(&root) && !isolates(&port));
}

static void locked(void)
{
	struct fake fake = fake_of(ACS_ROOT_PORT, 0x3420);

	fake.is_locked = true;
	CHECK(!isolate(&fake));
	/* Firmware has set what is needed, or all of it but one feature. */
	fake.control = ALL;
	CHECK(isolate(&fake));
	fake.control = ALL & ~PCI_ACS_TB;
	CHECK(!isolate(&fake));
	fake.control = ALL & ~PCI_ACS_SV;
	CHECK(!isolate(&fake));
	fake.control = ALL | PCI_ACS_DT;
	CHECK(!isolate(&fake));
}

/* The first and the last of each range, and what is beside it. */
static void wide(void)
{
	static const u16 has[] = { 0x9d10, 0x9d1b, 0xa110, 0xa11f, 0xa167, 0xa16a, 0xa290, 0xa29f, 0xa2e7, 0xa2ee };
	static const u16 has_not[] = { 0x9d0f, 0x9d1c, 0xa10f, 0xa120, 0xa166, 0xa16b, 0xa28f, 0xa2a0, 0xa2e6, 0xa2ef };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(has); i++) {
		struct fake fake = fake_of(ACS_ROOT_PORT, has[i]), locked;

		fake.is_wide = true;
		CHECK(!isolates(&fake));
		CHECK(isolate(&fake) && fake.control == ALL);
		locked = fake_of(ACS_ROOT_PORT, has[i]);
		locked.is_wide = locked.is_locked = true;
		CHECK(!isolate(&locked));
	}
	for (i = 0; i < ARRAY_SIZE(has_not); i++) {
		struct fake fake = fake_of(ACS_ROOT_PORT, has_not[i]);

		CHECK(isolate(&fake) && fake.control == ALL);
	}
	/* A port with such registers that is in no list: a write to where the register should be changes nothing. */
	struct fake unknown = fake_of(ACS_ROOT_PORT, 0x1234);

	unknown.is_wide = true;
	CHECK(!isolate(&unknown) && !unknown.control);
}

static void absent(void)
{
	struct fake fake = fake_of(ACS_ROOT_PORT, 0x3420), below = fake_of(ACS_SWITCH_PORT, 0x3420);

	fake.is_absent = below.is_absent = true;
	CHECK(!isolates(&fake) && !isolate(&fake) && keep(&fake) == ACS_OPEN && !fake.writes);
	CHECK(!isolates(&below) && !isolate(&below));
	fake = fake_of(ACS_ROOT_PORT, 0xa110);
	fake.is_wide = fake.is_absent = true;
	CHECK(!isolates(&fake) && !isolate(&fake));
}

/* Firmware lets some requests go to other ports directly. */
static void short_cuts(void)
{
	struct fake fake = fake_of(ACS_SWITCH_PORT, 0x3420);

	fake.control = ALL | PCI_ACS_DT;
	CHECK(!isolates(&fake));
	CHECK(isolate(&fake) && fake.control == ALL);
	fake.able |= PCI_ACS_EC;
	fake.control = ALL | PCI_ACS_EC;
	CHECK(!isolates(&fake));
	CHECK(isolate(&fake) && fake.control == ALL);
}

static void without(void)
{
	struct fake fake = fake_of(ACS_ROOT_PORT, 0x1c10), bridge = fake_of(ACS_OTHER, 0);

	fake.port.at = bridge.port.at = 0;
	CHECK(!isolates(&fake) && !isolate(&fake) && keep(&fake) == ACS_OPEN);
	CHECK(isolates(&bridge) && keep(&bridge) == ACS_KEPT);
	/* It has the capability, and not every feature. One that it lacks is not asked for if an IOMMU does the same. */
	fake = fake_of(ACS_ROOT_PORT, 0x3420);
	fake.able = PCI_ACS_SV;
	CHECK(isolate(&fake) && fake.control == PCI_ACS_SV);
	fake.able = PCI_ACS_TB;
	CHECK(!isolate(&fake));
}

/* A reset, or a time without power, between two looks. */
static void forgetful(void)
{
	struct fake fake = fake_of(ACS_SWITCH_PORT, 0x3420);
	int writes;

	CHECK(isolate(&fake));
	writes = fake.writes;
	CHECK(keep(&fake) == ACS_KEPT && fake.writes == writes);
	fake.is_absent = true;
	CHECK(keep(&fake) == ACS_OPEN);
	fake.is_absent = false;
	fake.control = 0;
	CHECK(!isolates(&fake));
	CHECK(keep(&fake) == ACS_SET_AGAIN && fake.control == ALL && isolates(&fake));
	fake.control = 0;
	fake.is_locked = true;
	CHECK(keep(&fake) == ACS_OPEN);
}

int main(int words, char **word)
{
	static const struct check checks[] = {
		{ "standard", standard }, { "locked", locked }, { "wide", wide }, { "absent", absent },
		{ "short-cuts", short_cuts }, { "without", without }, { "forgetful", forgetful },
	};

	return run_check(checks, ARRAY_SIZE(checks), words, word);
}

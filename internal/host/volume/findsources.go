package volume

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lodge-kvm/lodge/internal/base/fault"
	"github.com/lodge-kvm/lodge/internal/host/volume/blockdev"
	"github.com/lodge-kvm/lodge/internal/mechanism/image"
	"github.com/lodge-kvm/lodge/internal/word/xmltree"
)

// FindSources returns a document of possible sources for pools of a type. spec is a document that narrows the
// search: for netfs it names the host, and for logical it is not needed.
func FindSources(ctx context.Context, t Type, spec string) (string, error) {
	if err := checkType(t); err != nil {
		return "", err
	}
	if t == Logical {
		return findGroups(ctx)
	}
	if t != NetFS {
		return "", fault.New(fault.Unsupported, fault.Call, "pools of type %q have no sources to be found", t)
	}
	root, err := xmltree.Parse(spec)
	if err != nil {
		return "", err
	}
	host := attr(root.Child("host"), "name")
	if !hostName.MatchString(host) {
		return "", fault.New(fault.Invalid, fault.XML, "the source has no usable host: %q", host)
	}
	if err := blockdev.NeedTool("showmount", "nfs-common"); err != nil {
		return "", err
	}
	out, err := blockdev.Run(ctx, answerTime, "showmount", "--no-headers", "--exports", host)
	if err != nil {
		return "", fault.Wrap(err, fault.Of(err), fault.Pool, "cannot list the exports of %s", host)
	}
	return xmltree.Format(exports(host, out))
}

// exports makes the document from showmount's output: on each line a path, and the hosts that may mount it.
func exports(host, list string) *xmltree.Element {
	sources := element("sources")
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.ContainsFunc(fields[0], isUnprintable) || xmltree.CheckText(fields[0]) != nil || !strings.HasPrefix(fields[0], "/") {
			continue
		}
		sources.Children = append(sources.Children, element("source",
			attribute{"name", host}.on(element("host")), attribute{"path", fields[0]}.on(element("dir")), typedElement("format", "nfs")))
	}
	return sources
}

// Capabilities returns the document of supported types and formats of pools and volumes.
func Capabilities() (string, error) {
	root := element("storagepoolCapabilities")
	for _, t := range []struct {
		name    Type
		formats []string
	}{{Dir, nil}, {FS, fsFormats}, {NetFS, netFSFormats}} {
		pool := poolSupport(t.name, "yes")
		if t.formats != nil {
			pool.Children = append(pool.Children, element("poolOptions", typedElement("defaultFormat", t.formats[0]), valuesElement("sourceFormatType", t.formats)))
		}
		pool.Children = append(pool.Children, element("volOptions", typedElement("defaultFormat", string(image.Raw)), valuesElement("targetFormatType", image.Formats())))
		root.Children = append(root.Children, pool)
	}
	root.Children = append(root.Children, blockSupport(Logical, "vgs", []string{"lvm2"}), blockSupport(Disk, "sfdisk", append([]string{"unknown"}, diskFormats...)))
	for _, t := range slices.Sorted(maps.Keys(unsupportedTypes)) {
		root.Children = append(root.Children, poolSupport(t, "no"))
	}
	return xmltree.Format(root)
}

// blockSupport says whether a type's tool is installed.
func blockSupport(t Type, tool string, formats []string) *xmltree.Element {
	if blockdev.NeedTool(tool, "") != nil {
		return poolSupport(t, "no")
	}
	pool := poolSupport(t, "yes")
	pool.Children = append(pool.Children, element("poolOptions", typedElement("defaultFormat", formats[0]), valuesElement("sourceFormatType", formats)))
	if t == Disk {
		pool.Children = append(pool.Children, element("volOptions", typedElement("defaultFormat", "none"), valuesElement("targetFormatType", blockdev.Usages())))
	}
	return pool
}

// findGroups lists the volume groups of the host.
func findGroups(ctx context.Context) (string, error) {
	groups, err := blockdev.GroupDevices(ctx)
	if err != nil {
		return "", fault.Wrap(err, fault.Of(err), fault.Pool, "cannot list the volume groups")
	}
	sources := element("sources")
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		source := element("source")
		for _, device := range groups[name] {
			source.Children = append(source.Children, attribute{"path", device}.on(element("device")))
		}
		source.Children = append(source.Children, textElement("name", name), typedElement("format", "lvm2"))
		sources.Children = append(sources.Children, source)
	}
	return xmltree.Format(sources)
}

func poolSupport(t Type, supported string) *xmltree.Element {
	return attribute{"supported", supported}.on(typedElement("pool", string(t)))
}

func valuesElement[S ~string](name string, of []S) *xmltree.Element {
	e := attribute{"name", name}.on(element("enum"))
	for _, v := range of {
		e.Children = append(e.Children, textElement("value", string(v)))
	}
	return e
}
